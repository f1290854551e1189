"""How the process ends, in the numbers of sysexits.h, which the unit's restart policy relies on."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command."""

    OK = 0
    """Told to stop, or every source has played (`exit_when_done`)."""
    USAGE = 64
    """The command line is wrong."""
    NO_INPUT = 66
    """No source gave anything."""
    UNAVAILABLE = 69
    """A port is in use, or a device is not there: trying again may help."""
    FAULT = 70
    """A fault in retinad or in the device."""
    CANNOT_CREATE = 73
    """What a job is to write cannot be made, or holds something else."""
    IO_ERROR = 74
    """Writing failed on the way, such as on a full disk."""
    INCOMPLETE = 75
    """A job was stopped before its end: the same command goes on."""
    CONFIG = 78
    """The config is wrong: trying again cannot help."""


class JobError(Exception):
    """A command cannot go on; the message says why and what to do, and holds no secret.

    Attributes:
        code: how the process ends.
    """

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
