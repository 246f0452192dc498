"""Models for machines without torch: one ONNX file each, made smaller, and measured beside the original.

It imports `learning` and `runs`, and onnx.  `fedgossip model export RUN`: `export` writes one graph, `quantization`
makes its weights eight bits, `bench` measures both.
"""
