"""Reads GStreamer pipelines through OpenCV's GStreamer backend."""

from ..errors import SourceError, SourceFault
from ..frames import Pixels
from .opencv import CaptureBackend, Property, VideoCapture
from .reader import Grabbed, SourceInfo, UnreadableImage

_NAME = "the GStreamer pipeline"
_GUESS = "an element or a property is unknown, or the source of the pipeline does not exist"


def open_pipeline(pipeline: str) -> "PipelineReader":
    """Open a pipeline.

    Raises:
        SourceError: the pipeline cannot be opened (fault `CODEC`). GStreamer prints the real reason on standard error
            only.
    """
    return PipelineReader(VideoCapture(pipeline, CaptureBackend.GSTREAMER, {}, _NAME, SourceFault.CODEC, _GUESS))


class PipelineReader:
    """An open pipeline. It counts as a camera, so its end is a failure.

    Args:
        capture: the pipeline as opened by OpenCV; closed with the reader.
    """

    def __init__(self, capture: VideoCapture) -> None:
        self._capture = capture
        fps = capture.get(Property.FPS)
        self.info = SourceInfo(
            backend="gstreamer",
            width=int(capture.get(Property.WIDTH) or 0),
            height=int(capture.get(Property.HEIGHT) or 0),
            fps=fps if fps is not None and fps > 0 else None,
            finite=False,
            live=True,
        )

    def grab(self) -> Grabbed | None:
        """See `Reader`."""
        if not self._capture.grab():
            raise SourceError(SourceFault.CLOSED, f"{_NAME} has ended")
        return Grabbed()

    def retrieve(self, out: Pixels | None) -> Pixels:
        """See `Reader`."""
        pixels = self._capture.retrieve(out)
        if pixels is None:
            raise UnreadableImage(f"a frame of {_NAME} cannot be decoded")
        return pixels

    def close(self) -> None:
        """See `Reader`."""
        self._capture.close()
