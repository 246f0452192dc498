"""Models for machines without torch: one ONNX file each, compressed, and compared with the original.

It imports `learning` and `runs`, and onnx.  `fedgossip model export RUN`: `onnx_model` writes one graph, `compression`
quantises its weights to eight bits, `bench` measures both.
"""
