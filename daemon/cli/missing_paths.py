"""Says which local sources of a config are not there: most often a mistyped path or address. Looks at names only."""

import re
from collections.abc import Iterator, Sequence

from retinad.pipeline.config import CameraConfig
from retinad.pipeline.errors import SourceError
from retinad.pipeline.sources.paths import locate
from retinad.pipeline.sources.redact import mask
from retinad.pipeline.sources.spec import NETWORK_SCHEMES, PathSpec, parse_source

_MISTYPED = re.compile(rf"({'|'.join(NETWORK_SCHEMES)})[:/]", re.IGNORECASE)


def missing_paths(cameras: Sequence[CameraConfig]) -> Iterator[str]:
    """A line for each camera whose path cannot be read as things are; the service tries such a source again."""
    for camera in cameras:
        try:
            spec = parse_source(camera.source)
            if isinstance(spec, PathSpec):
                locate(spec.path)
        except SourceError as error:
            scheme = _MISTYPED.match(camera.source)
            hint = f" (an address begins with {scheme[1].lower()}://)" if scheme else ""
            yield f"camera {camera.name}: {mask(str(error), camera.source)}{hint}"
