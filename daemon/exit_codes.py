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
    CONFIG = 78
    """The config is wrong: trying again cannot help."""
