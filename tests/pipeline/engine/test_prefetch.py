"""Pictures fitted ahead give what those fitted in their step give; it is done when the step before is nearly over."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from retinad.pipeline.config import ResizeMode
from retinad.pipeline.engine import prefetch as ahead
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.executor import StepOutput
from retinad.pipeline.engine.images import Pictures
from retinad.pipeline.engine.outputs import HostCopy
from retinad.pipeline.engine.prefetch import NAP_S, SPARE_FITTINGS, SPARE_SHARE, Prefetcher
from retinad.pipeline.frames import Frame

from .engine_rig import CONFIG, STREAM, alone, assert_same, bad, frame, good


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sums of the pictures that were fitted."""
    sums: list[int] = []
    make = Pictures.make

    def counted(pictures: Pictures, pixels: np.ndarray, geometry: object) -> object:
        sums.append(int(pixels.sum()))
        return make(pictures, pixels, geometry)  # type: ignore[arg-type]

    monkeypatch.setattr(Pictures, "make", counted)
    return sums


@pytest.fixture
def _gpu_like(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a step's numbers come later."""
    monkeypatch.setattr(HostCopy, "pending", property(lambda copy: True))


def opened(engine: Engine, *cameras: str, resize: ResizeMode = ResizeMode.CROP) -> Engine:
    for camera in cameras:
        engine.open_stream(camera, STREAM, resize)
    return engine


@pytest.mark.usefixtures("_gpu_like")
def test_features_are_the_same_and_no_picture_is_fitted_twice(made: list[int]) -> None:
    frames = [frame("a", number) for number in range(8)]
    expected = alone(frames)
    made.clear()
    actual = []
    with opened(Engine(CONFIG), "a") as engine:
        for now, after in zip(frames, [*frames[1:], frames[0]], strict=True):
            actual += good(engine.step([now], lambda running, after=after: engine.prepare([after])))  # type: ignore[misc]
        made.pop()
    assert made == [int(one.pixels.sum()) for one in frames]
    for one, other in zip(actual, expected, strict=True):
        assert one.stamp == other.stamp
        assert_same(one, other, tolerance=0.0)


def test_pixels_may_change_once_they_are_fitted() -> None:
    frames = [frame("a", number) for number in range(4)]
    expected = alone(frames)
    with opened(Engine(CONFIG), "a") as engine:
        good(engine.step(frames[:2]))
        engine.prepare(frames[2:3])
        frames[2].pixels.fill(0)
        (actual,) = good(engine.step(frames[2:3]))
    assert_same(actual, expected[2], tolerance=0.0)


def test_what_cannot_be_fitted_is_told_by_its_step_only(made: list[int]) -> None:
    thin = frame("a", 0, size=(640, 4))
    wrong = replace(frame("a", 1), pixels=np.zeros((3, 3, 3), np.uint8))
    with opened(Engine(CONFIG), "a") as engine:
        engine.prepare([thin, wrong, frame("nobody", 0)])
        assert len(made) == 1
        reasons = [failure.reason for failure in bad(engine.step([thin, wrong]))]
    assert ["too thin" in reason for reason in reasons] == [True, False]
    assert "expected uint8 [48, 64, 3]" in reasons[1]


def test_a_picture_that_was_fitted_for_another_stream_is_fitted_again(made: list[int]) -> None:
    one = [frame("a", number) for number in range(2)]
    with opened(Engine(CONFIG), "a") as engine:
        engine.prepare(one)
        engine.close_stream("a")
        opened(engine, "a", resize=ResizeMode.PAD)
        actual = good(engine.step(one))
    assert len(made) == 4
    for features, expected in zip(actual, alone(one, resize=ResizeMode.PAD), strict=True):
        assert_same(features, expected, tolerance=0.0)


def test_pictures_that_no_step_took_are_kept_until_the_next_are_made() -> None:
    with opened(Engine(CONFIG), "a") as engine:
        engine.prepare([frame("a", number) for number in range(3)])
        engine.prepare([frame("a", 3)])
        assert len(engine._pictures._ahead) == 1


@pytest.mark.usefixtures("_gpu_like")
def test_meanwhile_is_called_once_when_the_last_forward_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    with opened(Engine(CONFIG), "a", "b") as engine:
        run = engine._model_runner._model.forward

        def forward(*arguments: object) -> object:
            calls.append("forward")
            return run(*arguments)

        monkeypatch.setattr(engine._model_runner._model, "forward", forward)
        sizes = {"a": (64, 48), "b": (48, 64)}
        frames = [frame(camera, number, size) for number in range(3) for camera, size in sizes.items()]
        good(engine.step(frames[:1], lambda running: calls.append("meanwhile")))
        assert calls == [], "its frame waits for another"
        good(engine.step(frames[1:], lambda running: calls.append("meanwhile")))
    assert calls == ["forward"] * 4 + ["meanwhile"]


def test_a_steps_parts_are_those_of_its_forwards_and_failures_come_first() -> None:
    sizes = {"a": (64, 48), "b": (48, 64), "c": (64, 48)}
    with opened(Engine(CONFIG), *sizes) as engine:
        frames = [frame(camera, number, size) for number in range(3) for camera, size in sizes.items()]
        parts = list(engine.step_outputs([frame("nobody", 0), *frames]))
        assert len(bad(parts[0].outcomes)) == 1
        given = [[(one.stamp.camera, one.stamp.source_seq) for one in good(part.outcomes)] for part in parts[1:]]
        assert [part.last for part in parts] == [False, False, False, False, True]
        block = [("a", 0), ("a", 1), ("c", 0), ("c", 1)]
        assert given == [block, [("b", 0), ("b", 1)], [("a", 2), ("c", 2)], [("b", 2)]]


def test_on_a_cpu_records_wait_for_no_picture() -> None:
    with opened(Engine(CONFIG), "a") as engine:
        good(engine.step([frame("a", number) for number in range(3)], pytest.fail))


@pytest.mark.parametrize("height", [1, 3, 1500, 1501])
@pytest.mark.parametrize("width", [1, 1000])
def test_several_threads_copy_every_row_of_a_large_picture(width: int, height: int) -> None:
    source = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    target = np.zeros_like(source)
    Pictures(torch.device("cpu"))._copy(target, source)
    np.testing.assert_array_equal(target, source)


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now_s = 5.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


class TimedEngine:
    """Runs as long as it is told, of which the host waits for all but the first millisecond."""

    def __init__(self, clock: Clock, fitting_s: float) -> None:
        self.clock = clock
        self.run_s = 0.0
        self.fitting_s = fitting_s
        self.prepared_s: list[float] = []

    def step_outputs(
        self, frames: Sequence[Frame], while_device_busy: Callable[[Callable[[], bool]], None]
    ) -> Iterator[StepOutput]:
        self.clock.now_s += 0.001
        self.launched_s = self.clock.now_s
        while_device_busy(lambda: self.clock.now_s < self.launched_s + self.run_s)
        self.clock.now_s = max(self.clock.now_s, self.launched_s + self.run_s)
        yield StepOutput([], last=True)

    def prepare(self, frames: Sequence[Frame]) -> None:
        self.prepared_s.append(self.clock.now_s - self.launched_s)
        self.clock.now_s += self.fitting_s


def test_it_looks_shortly_before_the_end_and_holds_no_step_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(ahead, "time", clock)
    engine = TimedEngine(clock, fitting_s=0.002)
    waiting: list[Frame] = [frame("a", 0)]
    steps = Prefetcher(lambda: waiting)

    def step(run_s: float, frames: int = 1) -> float | None:
        """After what part of the run it looked; None where it did not, and was late by a nap at most."""
        engine.run_s, count = run_s, len(engine.prepared_s)
        assert list(steps.step(engine, [frame("a", number) for number in range(frames)])) == [StepOutput([], last=True)]  # type: ignore[arg-type]
        late_s = clock.now_s - engine.launched_s - run_s
        if len(engine.prepared_s) > count:
            assert late_s == pytest.approx(0.0)
            return engine.prepared_s[-1]
        assert 0 <= late_s <= NAP_S + 1e-9
        return None

    def expected(run_s: float) -> float:
        return (1 - SPARE_SHARE) * run_s - SPARE_FITTINGS * 0.002

    assert step(0.1) == 0.0, "nothing is known yet"
    assert step(0.1) == pytest.approx(expected(0.1))
    assert step(0.2) == pytest.approx(expected(0.1))
    assert step(0.1, frames=3) == 0.0, "of other steps nothing is known"
    assert step(0.1) is None, "shorter than the last one"
    assert step(0.1) == pytest.approx(expected(0.1), abs=NAP_S)
    assert step(60.0) is not None
    assert step(0.005) is None, "the last one was held up: this one is not"


def test_where_nothing_waits_nothing_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(ahead, "time", clock)
    engine = TimedEngine(clock, fitting_s=0.002)
    assert list(Prefetcher(lambda: []).step(engine, [frame("a", 0)])) == [StepOutput([], last=True)]  # type: ignore[arg-type]
    assert engine.prepared_s == []
