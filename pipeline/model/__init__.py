"""The streaming causal aggregator (arXiv 2604.14141): layers, backbones, presets and weights.

Dimension letters: F frames of a step (of one or more streams), P tokens of a frame, S special tokens of a frame,
C channels, H heads, D = C / H channels of a head.
"""
