"""Features of Python 3.11 that the client uses, for Python 3.10."""

import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """Replaces `enum.StrEnum`: an enum whose members are strings."""

        __str__ = str.__str__
        __format__ = str.__format__


__all__ = ["StrEnum"]
