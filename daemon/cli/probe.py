"""Opens every source of a config at the same time and describes what each one delivers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import anyio

from retinad.pipeline.capture.probe import probe
from retinad.pipeline.capture.starts import CaptureStarts
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.errors import SourceError
from retinad.pipeline.sources.reader import SourceInfo
from retinad.pipeline.sources.redact import mask


@dataclass(frozen=True, slots=True)
class CameraFinding:
    """The result of opening one camera.

    Attributes:
        camera: its config.
        outcome: the description of its source, or the error that opening the source raised.
    """

    camera: CameraConfig
    outcome: SourceInfo | SourceError

    @property
    def is_good(self) -> bool:
        """Whether the camera delivered a frame."""
        return isinstance(self.outcome, SourceInfo)

    def __str__(self) -> str:
        lines = list(_describe(self.outcome, self.camera.fps))
        source = mask(self.camera.source, self.camera.source)
        return "\n".join([f"{self.camera.name}: {mask(lines[0], self.camera.source)}", f"    {source}", *lines[1:]])


async def probe_cameras(cameras: Sequence[CameraConfig]) -> list[CameraFinding]:
    """Open all cameras at once, each with its own timeouts; the findings are in the order of the cameras."""
    outcomes: dict[str, SourceInfo | SourceError] = {}
    starts = CaptureStarts()

    async def probe_one(camera: CameraConfig) -> None:
        outcomes[camera.name] = await probe(camera, starts)

    async with anyio.create_task_group() as group:
        for camera in cameras:
            group.start_soon(probe_one, camera, name=f"probe {camera.name}")
    return [CameraFinding(camera, outcomes[camera.name]) for camera in cameras]


def _describe(outcome: SourceInfo | SourceError, most_fps: float | None) -> Iterator[str]:
    if isinstance(outcome, SourceError):
        yield f"{outcome.fault}: {outcome}"
        return
    words = [f"{outcome.width}x{outcome.height}"]
    if outcome.backend == "images":  # a folder has no rate of its own
        words.append(f"{most_fps or outcome.fps:g} frames/s")
    elif outcome.fps:
        cap = f" (limited to {most_fps:g} by the key fps)" if most_fps and most_fps < outcome.fps else ""
        words.append(f"{outcome.fps:g} frames/s{cap}")
    if outcome.codec:
        words.append(outcome.codec)
    if outcome.frame_count:
        words.append(f"{outcome.frame_count} frame{'s' * (outcome.frame_count > 1)}")
    words.append(f"by {outcome.backend}")
    yield ", ".join(words)
    yield from (f"    note: {note}" for note in outcome.notes)
