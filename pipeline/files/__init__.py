"""File helpers: atomic writes, lock files, safetensors files, state files."""
