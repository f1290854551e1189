"""The built-in scene as a kind of source: `synthetic:`, with options behind a question mark."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_type_hints
from urllib.parse import parse_qsl

from .redact import mask
from .spec import SourceKind, SourceSpec, unreadable

if TYPE_CHECKING:
    from ..config import CameraConfig
    from ..frames import Size
    from .reader import Reader
    from .scene import SyntheticScene


@dataclass(frozen=True, slots=True)
class SyntheticSpec(SourceSpec):
    """The built-in scene.

    Attributes:
        width: width of a frame in pixels.
        height: height of a frame in pixels.
        fps: frames per second in live mode.
        seed: seed of the texture and the camera's path.
        frames: number of frames until the scene ends, or 0 for no end.
        period: number of frames until the camera is back at its start.
    """

    width: int = 640
    height: int = 480
    fps: float = 30.0
    seed: int = 0
    frames: int = 0
    period: int = 300

    @property
    def frame_size(self) -> "Size":
        """See `SourceSpec`."""
        return self.width, self.height

    def load(self, config: "CameraConfig") -> "Callable[[], Reader]":
        """See `SourceSpec`."""
        from .scene import SyntheticReader

        return lambda: SyntheticReader(self.scene(), fps=self.fps, frames=self.frames)

    def scene(self) -> "SyntheticScene":
        """The images of this scene, by number."""
        from .scene import SyntheticScene

        return SyntheticScene(self.width, self.height, seed=self.seed, period=self.period)


def _parse(text: str) -> SyntheticSpec | None:
    scheme, _, options = text.partition(":")
    if scheme.lower() != "synthetic":
        return None
    try:
        return _from_options(options)
    except ValueError as exc:
        raise unreadable(mask(f"synthetic: {exc}", text)) from None  # the text may contain an address


def _from_options(text: str) -> SyntheticSpec:
    types = get_type_hints(SyntheticSpec)
    options: dict[str, int | float] = {}
    if text and not text.startswith("?"):
        raise ValueError(f"is followed by {text!r}: expected synthetic:?width=640&height=480&fps=30&seed=0")
    for key, value in parse_qsl(text[1:], keep_blank_values=True, separator="&"):
        if key not in types:
            raise ValueError(f"has no option {key!r} (known: {', '.join(types)})")
        options[key] = _number(key, value, types[key])
    spec = SyntheticSpec(**options)  # type: ignore[arg-type]  # each value has its field's type
    _check_ranges(spec)
    return spec


def _number(key: str, value: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{key} must be a number, got {value!r}") from None


def _check_ranges(spec: SyntheticSpec) -> None:
    for name, low, high in (
        ("width", 8, 8192),
        ("height", 8, 8192),
        ("fps", 0.01, 10000),
        ("seed", 0, 2**32 - 1),
        ("frames", 0, 2**62),
        ("period", 1, 2**31),
    ):
        value = getattr(spec, name)
        if not low <= value <= high:
            raise ValueError(f"{name} must be {low} to {high}, got {value}")


SYNTHETIC = SourceKind(
    name="the synthetic scene",
    forms=("synthetic:", "synthetic:?width=640&height=480&fps=30&seed=0"),
    schemes=("synthetic:",),
    parse=_parse,
    ends=True,
)
