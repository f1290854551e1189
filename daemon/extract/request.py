"""The request for an extraction. The camera, the number of frames per step and the settings are derived from it."""

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from retinad.pipeline.config import CameraConfig, CaptureMode, ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.batch_size import FRAMES_PER_STEP, largest_frames_per_step
from retinad.pipeline.engine.checkpoint import ModelIdentity
from retinad.pipeline.engine.device_usage import free_room
from retinad.pipeline.frames import Size
from retinad.pipeline.model.checkpoint import weights_name
from retinad.pipeline.sources.paths import PathSpec
from retinad.pipeline.sources.redact import mask
from retinad.pipeline.sources.registry import parse_source

from .index import Form, Index, Settings, check_settings

CAMERA = "input"
"""Name of the stream in the engine."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """The request for an extraction.

    Attributes:
        source: the recording, as in a config.
        out: the output folder.
        model: the model.
        stream: the stream's memory settings.
        resize: how images are resized for the model.
        run_frames: number of frames per step. None means as many as fit in a GPU's memory, or on a CPU the number
            in `stream`.
        form: file format of the shards.
        shard_frames: maximum number of frames in a shard; None for as many as fit in 256 MiB.
        save_every_s: seconds between checkpoints.
    """

    source: str
    out: Path
    model: ModelConfig
    stream: StreamConfig
    resize: ResizeMode = ResizeMode.CROP
    run_frames: int | None = None
    form: Form = "safetensors"
    shard_frames: int | None = None
    save_every_s: float = 60.0

    @property
    def is_live(self) -> bool:
        """Whether the source's name alone shows that it is a live camera.

        Raises:
            SourceError: the name is not that of a valid source.
        """
        return parse_source(self.source).is_live

    @property
    def is_fifo(self) -> bool:
        """Whether the source is a FIFO, which can be read only once.

        Raises:
            SourceError: the name is not that of a valid source.
        """
        spec = parse_source(self.source)
        try:
            return isinstance(spec, PathSpec) and stat.S_ISFIFO(os.stat(os.path.expanduser(spec.path)).st_mode)
        except (OSError, ValueError):
            return False

    def camera(self, stream: StreamConfig) -> CameraConfig:
        """Make a camera that reads the recording, drops no frame and does not retry."""
        return CameraConfig(
            CAMERA, self.source, mode=CaptureMode.LOSSLESS, resize=self.resize, retry=False, stream=stream
        )

    def settings(self, weights: str, run_frames: int) -> Settings:
        """The settings that must match those in the output folder for the job to resume.

        Args:
            weights: name of the loaded weights.
            run_frames: the chosen number of frames per step.
        """
        return Settings(
            source=mask(_whole_name(self.source), self.source),
            resize=self.resize,
            image_width=self.model.image_width,
            model_name=self.model.name,
            model=ModelIdentity.of(self.model, weights),
            output=self.model.output,
            stream=replace(self.stream, run_frames=run_frames),
            form=self.form,
            outputs=self.model.outputs,
        )


def choose_run(wanted: Extraction, size: Size, before: Index | None) -> int:
    """Choose the number of frames per step: as requested, or as in an earlier run, or as many as fit in memory.

    On a CPU, where memory is not measured, the last choice is `run_frames` of the stream's config. Call it while the
    model is loaded.

    Args:
        wanted: the request.
        size: width and height of the recording's frames.
        before: index of an earlier run, or None.

    Raises:
        AdmissionError: there is not enough memory.
    """
    asked = wanted.run_frames
    if asked is None and before is not None:
        asked = before.settings.stream.run_frames
    room = free_room(wanted.model.device)
    if room is None:
        return asked or wanted.stream.run_frames
    try:
        choices = (asked,) if asked else FRAMES_PER_STEP
        return largest_frames_per_step(wanted.model, wanted.stream, size, wanted.resize, room, choices)
    except ValueError:
        return asked or wanted.stream.run_frames  # the size cannot be resized: each frame will fail with the reason


def check_finished(wanted: Extraction, index: Index) -> None:
    """Check that a complete folder matches the request. Loads no model, but reads its weights file to name the weights.

    Raises:
        JobError: the folder holds features with other settings.
        ModelError: the weights file cannot be read.
    """
    run_frames = wanted.run_frames or index.settings.stream.run_frames
    check_settings(wanted.out, index, wanted.settings(weights_name(wanted.model), run_frames))


def _whole_name(source: str) -> str:
    spec = parse_source(source)
    # The name is that of a link's target: if the link changes, it leads to another recording.
    return os.path.realpath(os.path.expanduser(spec.path)) if isinstance(spec, PathSpec) else source
