"""The log: setup, rendering, redaction, and the output of native libraries."""
