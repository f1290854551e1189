"""The entry point. Blocks signals before all other imports, since a signal can arrive during these imports."""

import os
import signal
import sys


def main() -> None:
    """Run this process's command line and exit."""
    if sys.argv[1:2] == ["run"]:
        # These signals would end the process until the service handles them. While blocked, they stay pending.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGUSR1})
        for number in (signal.SIGINT, signal.SIGTERM):  # a clean stop: nothing needs closing yet
            signal.signal(number, lambda number, frame: os._exit(0))
    from .cli.app import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
