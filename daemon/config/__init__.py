"""Loads the config file: parses, merges, validates and resolves it, and reports what is wrong."""
