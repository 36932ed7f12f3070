"""glm-pto: switch an installed vLLM + vLLM-Ascend to fused GLM-4.5 operators, and back to the byte."""

__version__ = "0.1.0"
