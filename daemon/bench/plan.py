"""The plan of `retinad bench`, which is derived from the config and the command line before anything runs."""

from dataclasses import dataclass, replace
from pathlib import Path

from retinad.pipeline.config import CameraConfig, CaptureMode, StreamConfig
from retinad.pipeline.frames import Size
from retinad.pipeline.sources.synthetic import SyntheticSpec

from ..config.load import ServiceConfig

LIVE_FPS = 30.0
"""Frames per second of a typical live camera."""

MARGIN = 0.8
"""The cameras' frame rate in the end-to-end benchmark, as a share of the engine's maximum, up to `LIVE_FPS`."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The number of streams, the frame size and the number of steps to measure.

    Attributes:
        config: the service's config; its first camera sets the streams' memory and how images are resized.
        cameras: number of streams, at least 1.
        size: width and height of the streams' frames.
        steps: number of steps to measure, at least 2.
        window_full: whether to fill the streams' windows first.
        fps: frames per second of each camera, or None to derive the rate from the engine's speed.
    """

    config: ServiceConfig
    cameras: int
    size: Size
    steps: int
    window_full: bool = True
    fps: float | None = None

    @property
    def stream(self) -> StreamConfig:
        """Memory settings of each stream."""
        return self.config.cameras[0].stream

    @property
    def names(self) -> tuple[str, ...]:
        """The cameras' names."""
        return tuple(f"bench{number}" for number in range(self.cameras))

    @property
    def fill_steps(self) -> int:
        """Number of frames per stream before the measurement: the first block, or enough to fill the window."""
        stream = self.stream
        if not self.config.model.running_mixers:
            return 1
        if not self.window_full:
            return stream.scale_frames
        frames = stream.scale_frames + stream.window * stream.keyframe_interval
        return min(frames, stream.epoch_frames) if stream.epoch_frames else frames

    def rate(self, step_s: float) -> float:
        """Frames per second of each camera, given the duration of a step with one frame per camera."""
        return self.fps or min(LIVE_FPS, MARGIN / step_s)

    def spec(self, fps: float, seed: int) -> SyntheticSpec:
        """The scene of one camera."""
        width, height = self.size
        return SyntheticSpec(width=width, height=height, fps=fps, seed=seed, frames=self.fill_steps + self.steps)

    def service(self, folder: Path) -> ServiceConfig:
        """Make the config of the end-to-end benchmark.

        It has the same model and queues as `config`, but the plan's cameras, and publishes to a socket in `folder`.
        """
        first = self.config.cameras[0]
        cameras = tuple(
            CameraConfig(
                name,
                source="synthetic:",
                mode=CaptureMode.LIVE,
                resize=first.resize,
                queue_frames=first.queue_frames,
                stream=first.stream,
                outputs=first.outputs,
            )
            for name in self.names
        )
        return replace(
            self.config,
            keep_state=False,
            runtime_dir=folder,
            exit_when_done=True,
            publish=replace(self.config.publish, endpoints=(f"ipc://{folder}/bench.sock",), curve=None),
            model=replace(self.config.model, max_streams=max(self.config.model.max_streams, self.cameras)),
            cameras=cameras,
        )
