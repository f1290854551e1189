"""Where the process begins: what must come before all imports, which take longer than a signal."""

import signal
import sys


def main() -> None:
    """Run this process's command line and exit."""
    if sys.argv[1:2] == ["run"]:
        # Would end the process until the service listens: blocked, they wait till then.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGUSR1})
    from .cli.app import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
