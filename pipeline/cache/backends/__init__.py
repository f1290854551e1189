"""Attention backends: implementations of `AttentionBackend`, and the choice between them."""
