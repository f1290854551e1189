"""The process: command line, configuration, logs, systemd, and the service that opens all parts."""
