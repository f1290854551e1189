"""What an extraction is asked for, and what follows from it: its camera, its run of frames, its settings."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from retinad.pipeline.config import CameraConfig, CaptureMode, ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.batch_size import RUNS, Room, longest_run
from retinad.pipeline.engine.checkpoint import ModelIdentity
from retinad.pipeline.frames import Size
from retinad.pipeline.model.checkpoint import weights_name
from retinad.pipeline.sources.paths import PathSpec
from retinad.pipeline.sources.redact import mask
from retinad.pipeline.sources.registry import parse_source

from .index import Form, Index, Settings, check_settings

CAMERA = "input"
"""What the stream is called in the engine."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """What is asked for.

    Attributes:
        source: the recording, as the config would name it.
        out: folder of the features.
        model: the model.
        stream: what the stream remembers.
        resize: how pictures are fitted to the model.
        run_frames: frames in one step of the model; None for as many as fit a GPU, and on a CPU what `stream` says.
        form: what the shards are.
        shard_frames: frames of a shard at most; None for 256 MiB.
        save_every_s: seconds after which the memory is kept.
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
        """Whether the source is a camera by its name alone.

        Raises:
            SourceError: it is no source.
        """
        return parse_source(self.source).is_live

    def camera(self, stream: StreamConfig) -> CameraConfig:
        """The recording as a camera of which no frame is dropped and that is not tried again."""
        return CameraConfig(
            CAMERA, self.source, mode=CaptureMode.LOSSLESS, resize=self.resize, retry=False, stream=stream
        )

    def settings(self, weights: str, run_frames: int) -> Settings:
        """What must be the same to go on, with the weights' name and the run that was chosen."""
        return Settings(
            source=mask(_whole_name(self.source), self.source),
            resize=self.resize,
            image_width=self.model.image_width,
            model_name=self.model.name,
            model=ModelIdentity.of(self.model, weights),
            output=self.model.output,
            stream=replace(self.stream, run_frames=run_frames),
            form=self.form,
        )


def choose_run(wanted: Extraction, size: Size, before: Index | None) -> int:
    """Frames in one step: what is asked for, else that of an earlier try, else as many as fit.

    On a CPU, whose memory nobody counts, that is what the stream's config says. Call it where the model is loaded.

    Args:
        wanted: the job.
        size: width and height of the recording's pictures.
        before: what an earlier try left.

    Raises:
        AdmissionError: there is no room.
    """
    asked = wanted.run_frames
    if asked is None and before is not None:
        asked = before.settings.stream.run_frames
    room = Room.of(torch.device(wanted.model.device))
    if room is None:
        return asked or wanted.stream.run_frames
    try:
        return longest_run(wanted.model, wanted.stream, size, wanted.resize, room, (asked,) if asked else RUNS)
    except ValueError:
        return asked or wanted.stream.run_frames  # such a picture cannot be fitted: the engine says so of each


def check_finished(wanted: Extraction, index: Index) -> None:
    """Check that a complete folder holds what is asked for; of the model only its weights' file is read, for the name.

    Raises:
        JobError: it holds features made with other settings.
        ModelError: the file of the weights cannot be read.
    """
    run_frames = wanted.run_frames or index.settings.stream.run_frames
    check_settings(wanted.out, index, wanted.settings(weights_name(wanted.model), run_frames))


def _whole_name(source: str) -> str:
    spec = parse_source(source)
    # What a link leads to counts: where it leads elsewhere, it is another recording.
    return os.path.realpath(os.path.expanduser(spec.path)) if isinstance(spec, PathSpec) else source
