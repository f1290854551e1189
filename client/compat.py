"""What the client needs of Python 3.11, for Python 3.10."""

import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """`enum.StrEnum`: each member is its string."""

        __str__ = str.__str__
        __format__ = str.__format__


__all__ = ["StrEnum"]
