"""The running service: how it starts, runs its cameras, reports its status, reloads, stops, and notifies systemd."""
