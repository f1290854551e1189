"""The log: setup, rendering, redaction, and what native libraries print."""
