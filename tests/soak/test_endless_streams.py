"""A stream costs as much after 20,000 frames as at its start, with and without epochs. Run by `make soak`."""

import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from retinad.pipeline.config import (
    CameraHeadConfig,
    HorizonConfig,
    ModelConfig,
    NetworkConfig,
    OutputConfig,
    ResizeMode,
    StreamConfig,
)
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.frames import Features, Frame, FrameStamp, OutputKind, TokenGroup

FRAMES = 20_000
WINDOW = 2_000
"""Frames in a row of the table. Within the first row the history fills up and epochs end."""

SIZE = (28, 28)
MODEL = ModelConfig(
    name="soak",
    network=NetworkConfig(channels=32, heads=2, depth=1, patch_embed="conv"),
    image_width=28,
    output=OutputConfig(layers=(0,)),
)
STREAM = StreamConfig(scale_frames=4, window=8, history_frames=64)
HYBRID = replace(MODEL, network=replace(MODEL.network, depth=2, mixers=("kda", "attention")), output=OutputConfig((1,)))

HORIZON = ModelConfig(
    name="horizonstream",
    network=NetworkConfig(
        channels=32,
        heads=2,
        depth=2,
        patch_embed="conv",
        camera_head=CameraHeadConfig(heads=4, blocks=1, rounds=2),
        horizon=HorizonConfig(pose_tokens=2, memory_layers=(1,), scale_hidden=(8, 8)),
    ),
    image_width=28,
    output=OutputConfig((1,), (TokenGroup.SCALE, TokenGroup.PATCH)),
    outputs=(OutputKind.FEATURES, OutputKind.POSE),
)
"""With poses, whose trajectory is as long as the stream."""

YOUNG_EVERY = 4
"""A second, young stream of the same settings gets a frame after every four of the first."""

YOUNG_FRAMES = 250
"""The young stream is restarted after this many of its own frames."""

FULL_FRAMES = 100
"""Frames until a stream's memory is full, so that it costs as much as an older stream."""


@dataclass(frozen=True)
class Row:
    """The cost of some frames: bytes of the state and of the process, and the median time of a frame.

    The speed of a shared machine varies, so the times of a young stream are measured in turn with the old one's.
    """

    frames: int
    state_bytes: int
    recent_bytes: int
    resident_bytes: int
    old_ms: float
    young_ms: float

    @property
    def ratio(self) -> float:
        return self.old_ms / self.young_ms

    def __str__(self) -> str:
        sizes = f"{self.state_bytes / 1e3:9.1f} {self.recent_bytes / 1e3:10.1f} {self.resident_bytes / 1e6:12.1f}"
        return f"{self.frames:7} {sizes} {self.old_ms:7.3f} {self.young_ms:9.3f} {self.ratio:6.3f}"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def rows(model: ModelConfig, stream: StreamConfig) -> Iterator[Row]:
    old_ms: list[float] = []
    young_ms: list[float] = []
    with Engine(model) as engine:
        engine.open_stream("old", stream, ResizeMode.CROP)
        for number in range(FRAMES):
            old_ms.append(step_ms(engine, "old", number, waits=number < stream.scale_frames - 1))
            if number % YOUNG_EVERY == 0:
                age = number // YOUNG_EVERY % YOUNG_FRAMES
                if age == 0:
                    engine.close_stream("young")
                    engine.open_stream("young", stream, ResizeMode.CROP)
                time_ms = step_ms(engine, "young", age, waits=age < stream.scale_frames - 1)
                if age >= FULL_FRAMES:
                    young_ms.append(time_ms)
            if len(old_ms) == WINDOW:
                state = engine.statistics().streams[0]
                cost = (state.nbytes, state.recent_nbytes, resident_bytes())
                yield Row(number + 1, *cost, float(np.median(old_ms)), float(np.median(young_ms)))
                old_ms.clear()
                young_ms.clear()


POSE = "pose/world_from_camera"
IMAGES = [np.random.default_rng(n).integers(0, 256, (SIZE[1], SIZE[0], 3), np.uint8) for n in range(16)]


def step_ms(engine: Engine, camera: str, number: int, *, waits: bool) -> float:
    frame = Frame(FrameStamp(camera, 0, number, 0, 0, None, SIZE), IMAGES[number % 16])
    began_s = time.thread_time()
    outcomes = engine.step([frame])
    took_s = time.thread_time() - began_s
    assert bool(outcomes) is not waits
    assert all(isinstance(outcome, Features) for outcome in outcomes)
    poses = (t for one in outcomes if isinstance(one, Features) for t in one.tensors if t.name == POSE)
    assert all(np.isfinite(pose.data).all() for pose in poses)
    return took_s * 1e3


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("epoch_frames", [0, 320], ids=["epochs off", "epochs of 320"])
@pytest.mark.parametrize("model", [MODEL, HYBRID, HORIZON], ids=["attention", "hybrid", "horizonstream"])
def test_bytes_and_time_of_a_frame_stay_constant(model: ModelConfig, epoch_frames: int) -> None:
    stream = replace(STREAM, epoch_frames=epoch_frames)
    if model.network.horizon is not None:
        stream = replace(stream, scale_frames=stream.window, history_frames=0)
    print(f"\n{model.network.global_mixers}, epoch_frames = {epoch_frames}")
    print(" frames  state kB  recent kB  resident MB  old ms  young ms  ratio")
    table: list[Row] = []
    for row in rows(model, stream):
        print(row, flush=True)
        table.append(row)
    assert len({(row.state_bytes, row.recent_bytes) for row in table}) == 1
    assert table[-1].resident_bytes - table[1].resident_bytes < 2 << 20
    assert np.median([row.ratio for row in table[5:]]) < 1.05
    assert max(row.ratio for row in table) < 1.2
