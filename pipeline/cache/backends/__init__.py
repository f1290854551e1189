"""Attention backends: each reads a stream's keys and values its own way."""
