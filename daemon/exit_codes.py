"""The exit codes of all commands, numbered as in sysexits.h. The systemd unit's restart policy relies on them."""

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self  # not in Python 3.10, on which `retinad subscribe` runs too


class ExitCode(IntEnum):
    """Exit codes of every command.

    Attributes:
        meaning: the code in words, for the help.
    """

    meaning: str

    OK = 0, "stopped on request, or every source has ended (`exit_when_done`)"
    USAGE = 64, "the command line is wrong"
    NO_INPUT = 66, "no source delivered a frame"
    UNAVAILABLE = 69, "a port is in use or a device is missing: trying again may help"
    FAULT = 70, "a fault in retinad or in the device"
    CANNOT_CREATE = 73, "a job's output or a folder of the service cannot be created, or something else is there"
    IO_ERROR = 74, "writing failed, for example because the disk is full"
    INCOMPLETE = 75, "a job was stopped early: the same command resumes it"
    NO_PERMISSION = 77, "a folder or file of the service belongs to another user, or others can replace it"
    CONFIG = 78, "the config is wrong: trying again cannot help"

    def __new__(cls, value: int, meaning: str) -> "Self":
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


class JobError(Exception):
    """A command cannot continue. The message says why and what to do, and contains no secret.

    Attributes:
        code: the exit code of the process.
    """

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
