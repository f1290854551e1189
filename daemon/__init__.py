"""The process: command line, configuration, logs, systemd, and the service that connects all parts."""
