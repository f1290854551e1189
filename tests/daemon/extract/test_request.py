"""The number of frames per step of an extraction is as requested, as in the earlier run, or as many as fit."""

from dataclasses import replace
from pathlib import Path

import pytest

from retinad.daemon.extract.index import SCHEMA, Index
from retinad.daemon.extract.request import Extraction, choose_run
from retinad.pipeline.config import ModelConfig, ResizeMode, StreamConfig
from retinad.pipeline.engine.batch_size import Room, largest_frames_per_step
from retinad.pipeline.errors import AdmissionError
from retinad.pipeline.model.presets import LINGBOT_MAP

SIZE = (640, 480)
WANTED = Extraction("x.mp4", Path("out"), ModelConfig(dtype="bfloat16"), LINGBOT_MAP.stream)
SMALL = Room(free_bytes=9 << 30, pool_bytes=15 << 29)
"""Room for the stream, 7.06 GiB, and for some more frames."""


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Room, "of", lambda device: SMALL)


def before(run_frames: int) -> Index:
    settings = WANTED.settings("random:0", run_frames)
    return Index(SCHEMA, "0", False, settings, (), 0, 0, (), (), None)


def test_on_a_cpu_the_option_or_the_stream_decides() -> None:
    several = replace(WANTED, stream=StreamConfig(run_frames=3))
    assert [choose_run(wanted, SIZE, None) for wanted in (WANTED, several)] == [1, 3]
    assert choose_run(replace(several, run_frames=5), SIZE, None) == 5


@pytest.mark.usefixtures("_gpu")
def test_on_a_gpu_as_many_as_fit() -> None:
    run = choose_run(WANTED, SIZE, None)
    assert run == largest_frames_per_step(WANTED.model, WANTED.stream, SIZE, ResizeMode.CROP, SMALL) == 4
    assert choose_run(replace(WANTED, run_frames=2), SIZE, None) == 2


@pytest.mark.usefixtures("_gpu")
def test_what_does_not_fit_is_refused_before_the_first_frame() -> None:
    with pytest.raises(AdmissionError, match=r"7\.73 GiB for 79 frames"):
        choose_run(replace(WANTED, run_frames=8), SIZE, None)
    with pytest.raises(AdmissionError, match="not enough memory for the recording"):
        choose_run(WANTED, (1000, 1000), None)


@pytest.mark.usefixtures("_gpu")
def test_a_resumed_job_keeps_its_number() -> None:
    assert choose_run(WANTED, SIZE, before(run_frames=2)) == 2
    assert choose_run(replace(WANTED, run_frames=1), SIZE, before(run_frames=2)) == 1  # its index then refuses it
