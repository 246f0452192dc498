"""Models for machines without torch: one ONNX file each, made smaller, and measured beside the original.

It imports `learning` and `runs`, and onnx.  `fedgossip model export RUN`: `export` writes scaling, layers and
probabilities as one graph, `quantization` makes its weights eight bits, `bench` measures size, latency and score of
both.
"""
