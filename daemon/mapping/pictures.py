"""The pictures of a recording, for the colours of points. Needs the server's packages."""

from collections.abc import Callable

import numpy as np

from retinad.pipeline.config import CameraConfig, CaptureMode
from retinad.pipeline.errors import SourceError
from retinad.pipeline.sources.reader import UnreadableImage
from retinad.pipeline.sources.redact import mask
from retinad.pipeline.sources.registry import load_reader

from ..exit_codes import ExitCode, JobError
from .frames import Colours


def open_pictures(source: str) -> Callable[[int], Colours]:
    """Open a recording.

    Returns:
        a function that returns the frame with a `source_seq`, uint8 [height, width, 3] in RGB; to be called with
        ascending numbers.

    Raises:
        JobError: the recording cannot be read; the function raises it too.
    """
    return _Pictures(source).picture


class _Pictures:
    def __init__(self, source: str) -> None:
        self._source = source
        self._next = 0
        try:
            self._reader = load_reader(CameraConfig("recording", source, mode=CaptureMode.LOSSLESS))()
        except SourceError as error:
            raise self._error(str(error)) from error

    def picture(self, source_seq: int) -> Colours:
        try:
            while self._next <= source_seq and (grabbed := self._reader.grab()) is not None:
                number = self._next + grabbed.lost
                self._next = number + 1
                if number == source_seq:
                    return np.ascontiguousarray(self._reader.retrieve(None)[..., ::-1])
        except (SourceError, UnreadableImage) as error:
            raise self._error(str(error)) from error
        raise self._error(f"it has no frame {source_seq}")

    def _error(self, reason: str) -> JobError:
        return JobError(ExitCode.NO_INPUT, mask(f"the recording {self._source} cannot be read: {reason}", self._source))
