"""Checks which protocols the FFmpeg inside OpenCV has. If one is missing, FFmpeg fails without a reason."""

import ctypes
from contextlib import suppress

from . import opencv
from .spec import unreadable


def check_protocol(scheme: str) -> None:
    """Check that FFmpeg can open addresses of a scheme, such as `srt`.

    Raises:
        SourceError: FFmpeg cannot open such addresses (fault `UNREADABLE`).
    """
    if has_protocol(scheme) is False:
        raise unreadable(
            f"OpenCV's FFmpeg was built without {scheme.upper()}, as in pip's wheels: install an OpenCV that has it, or"
            " receive the stream by another protocol (rtsp, http, rtmp, udp)"
        )


def has_protocol(scheme: str) -> bool | None:
    """Whether FFmpeg has a protocol; None if its library is not found because it is linked into OpenCV."""
    path = opencv.loaded_library("libavformat")
    if path is None:
        return None
    with suppress(OSError, AttributeError):
        find = ctypes.CDLL(path).avio_find_protocol_name
        find.restype = ctypes.c_char_p
        find.argtypes = [ctypes.c_char_p]
        # FFmpeg takes an unknown scheme for the name of a file.
        return bool(find(f"{scheme}://".encode()) == scheme.encode())
    return None
