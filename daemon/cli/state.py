"""State that is kept after the function of a command has returned."""

from contextlib import ExitStack
from dataclasses import dataclass


@dataclass(slots=True)
class CommandState:
    """State that is kept after the function of a command has returned.

    Attributes:
        stack: closed at the end; `run` opens its log here, so that it is still open when a crash is reported.
        has_log: whether the log is open.
    """

    stack: ExitStack
    has_log: bool = False
