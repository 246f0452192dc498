"""Models for machines without torch: one ONNX file each, made smaller, and measured beside the original.

It imports `learning` and `runs`, and onnx.  `fedgossip model export RUN`: `onnx_model` writes one graph, `compression`
makes its weights eight bits, `bench` measures both.
"""
