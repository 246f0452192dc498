"""Models for machines without torch: one ONNX file each, made smaller, and measured beside what they came from."""
