"""Says which local sources of a config are missing: most often a mistyped path or address. Opens nothing."""

from collections.abc import Iterator, Sequence

from retinad.pipeline.config import CameraConfig
from retinad.pipeline.errors import SourceError
from retinad.pipeline.sources.redact import mask
from retinad.pipeline.sources.registry import parse_source, scheme_hint


def missing_paths(cameras: Sequence[CameraConfig]) -> Iterator[str]:
    """A line for each camera whose path cannot be read at the moment; the service keeps trying such a source."""
    for camera in cameras:
        try:
            parse_source(camera.source).check()
        except SourceError as error:
            yield f"camera {camera.name}: {mask(str(error), camera.source)}{scheme_hint(camera.source)}"
