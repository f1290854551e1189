"""What outlives the function of a command."""

from contextlib import ExitStack
from dataclasses import dataclass


@dataclass(slots=True)
class CommandState:
    """State that outlives the function of a command.

    Attributes:
        stack: closed at the end; `run` opens its log here, so that it is still open when a crash is reported.
        has_log: whether the log is open.
    """

    stack: ExitStack
    has_log: bool = False
