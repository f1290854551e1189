"""The config file: parse, merge, validate, resolve, and say what is wrong."""
