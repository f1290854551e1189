"""GStreamer pipelines as a kind of source: `gstreamer:` and a pipeline. OpenCV must be built with GStreamer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .redact import mask
from .spec import SourceKind, SourceSpec, unreadable

if TYPE_CHECKING:
    from ..config import CameraConfig
    from .reader import Reader

SCHEME = "gstreamer:"
_MISSING = (
    "OpenCV was built without GStreamer, as in pip's wheels: install an OpenCV that has it (cv2.getBuildInformation()"
    " then shows GStreamer: YES)"
)


@dataclass(frozen=True, slots=True)
class GStreamerSpec(SourceSpec):
    """A pipeline in the syntax of `gst-launch-1.0`, which ends in an `appsink`."""

    pipeline: str

    @property
    def is_live(self) -> bool:
        """See `SourceSpec`."""
        return True

    def check(self) -> None:
        """See `SourceSpec`."""
        from . import opencv

        if not opencv.has_backend(opencv.CaptureBackend.GSTREAMER):
            raise unreadable(_MISSING)

    def load(self, config: "CameraConfig") -> "Callable[[], Reader]":
        """See `SourceSpec`."""
        self.check()
        from .gstreamer_reader import open_pipeline

        return lambda: open_pipeline(self.pipeline)

    def __repr__(self) -> str:
        return f"GStreamerSpec(pipeline={mask(self.pipeline, SCHEME + self.pipeline)!r})"


def _parse(text: str) -> GStreamerSpec | None:
    scheme, colon, pipeline = text.partition(":")
    if not colon or f"{scheme.lower()}:" != SCHEME:
        return None
    elements = [element.strip() for element in pipeline.split("!")]
    if len(elements) < 2 or not all(elements) or not elements[-1].startswith("appsink"):
        raise unreadable(
            "expected gstreamer: and a pipeline: elements with ! between them, of which appsink is the last"
        )
    return GStreamerSpec(pipeline.strip())


GSTREAMER = SourceKind(
    name="a GStreamer pipeline",
    forms=("gstreamer:v4l2src device=/dev/video0 ! videoconvert ! video/x-raw,format=BGR ! appsink",),
    schemes=(SCHEME,),
    parse=_parse,
)
