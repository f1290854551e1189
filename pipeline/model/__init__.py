"""The streaming causal aggregator (arXiv 2604.14141): layers, backbones, presets and weights.

Dimension letters: F is the number of frames per step (of one or more streams), P the number of tokens per frame, S the
number of special tokens per frame, C the number of channels, H the number of heads, and D = C / H the number of
channels per head.
"""
