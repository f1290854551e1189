"""The sd_notify protocol: readiness, status and watchdog for systemd over a datagram socket. Without systemd, a no-op.

One of the modules that read the process's environment (the others are `config/load.py`, `config/job.py`,
`kernel_cache.py` and `service/control.py`).
"""

import os
import socket
import time
from collections.abc import Mapping
from typing import Self


class Notifier:
    """Sends notifications to the service manager. No method raises or blocks for more than 0.1 s.

    For the main process only (`NotifyAccess=main`): the constructor removes `NOTIFY_SOCKET`, `WATCHDOG_USEC` and
    `WATCHDOG_PID` from the given environment, so that child processes do not inherit them.

    Attributes:
        watchdog_interval_s: seconds between `watchdog()` calls that keep the service alive with a margin (half of the
            manager's limit), or None if the manager does not watch this process.
    """

    def __init__(self, environment: dict[str, str] | os._Environ[str] = os.environ) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        self.watchdog_interval_s = _watchdog_interval_s(environment)
        environment.pop("WATCHDOG_USEC", None)
        environment.pop("WATCHDOG_PID", None)
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = _open_socket() if address.startswith(("/", "@")) else None
        self._owes_ready = False

    def ready(self) -> None:
        """Report that the service is up, or has finished reloading. A failed notification is repeated later."""
        self._owes_ready = not self._send("READY=1")

    def reloading(self) -> None:
        """Report that a reload of the config has begun. Call `ready()` afterwards, even if the config is rejected."""
        self._owes_ready = False
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """Report that the service is shutting down."""
        self._owes_ready = False
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Show one line in `systemctl status`. The line must not contain secrets."""
        self._repeat_ready()
        self._send(f"STATUS={' '.join(text.split())}")

    def watchdog(self) -> None:
        """Report that the service is alive, as the watchdog expects."""
        self._repeat_ready()
        self._send("WATCHDOG=1")

    def extend_timeout(self, seconds: float) -> None:
        """Ask for this many more seconds, from now, for starting, reloading or stopping."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; later calls do nothing. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _repeat_ready(self) -> None:
        if self._owes_ready:
            self.ready()

    def _send(self, text: str) -> bool:
        """Send a notification. Returns False if the manager is gone or its queue is full; the service works without."""
        if self._socket is None:
            return True
        try:
            # By address each time: a manager that restarts may recreate its socket.
            self._socket.sendto(text.encode(errors="replace"), self._address)
        except OSError:
            return False
        return True


def _open_socket() -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    opened.settimeout(0.1)
    return opened


def _watchdog_interval_s(environment: Mapping[str, str]) -> float | None:
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    limit_us = environment.get("WATCHDOG_USEC", "")
    return int(limit_us) / 2_000_000 if limit_us.isascii() and limit_us.isdigit() and int(limit_us) > 0 else None
