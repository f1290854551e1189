"""The running service: start, cameras, status, reload, stop, and systemd."""
