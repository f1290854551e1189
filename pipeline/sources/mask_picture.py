"""Reads a camera's mask from a picture."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..view_config import Mask
from .picture_process import ANSWER, LENGTH

_DECODE_S = 20.0


class MaskError(ValueError):
    """A mask cannot be used. The message says why, without the file's name."""


def read_mask(path: Path) -> Mask:
    """Read a mask: where the picture is black, frames are ignored.

    Raises:
        MaskError: the file cannot be read or decoded, or masks everything.
    """
    try:
        counts = _decoded(path.read_bytes()).max(axis=2) > 0
    except OSError as exc:
        raise MaskError(f"it cannot be read: {exc.strerror}") from exc
    if not counts.any():
        raise MaskError("it masks everything: black is ignored, any other colour counts")
    return Mask(size=(counts.shape[1], counts.shape[0]), rows=np.packbits(counts, axis=1).tobytes(), file=str(path))


def _decoded(data: bytes) -> npt.NDArray[np.uint8]:
    # In a process of its own, since the service itself needs no OpenCV.
    command = [sys.executable, "-P", "-m", f"{__package__}.picture_process"]
    try:
        done = subprocess.run(
            command, input=LENGTH.pack(len(data)) + data, capture_output=True, timeout=_DECODE_S, check=True
        )
    except subprocess.SubprocessError as exc:
        raise MaskError("the process that decodes it failed") from exc
    width, height, size = ANSWER.unpack_from(done.stdout)
    rest = done.stdout[ANSWER.size : ANSWER.size + size]
    if not width:
        raise MaskError(f"it cannot be decoded: {rest.decode(errors='replace')}")
    return np.frombuffer(rest, np.uint8).reshape(height, width, 3)
