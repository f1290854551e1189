"""Prefetched images equal those preprocessed in their step; prefetching begins when a step is nearly over."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor

from retinad.pipeline.config import ResizeMode
from retinad.pipeline.engine import prefetch
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.executor import StepOutput
from retinad.pipeline.engine.host_copy import HostCopy
from retinad.pipeline.engine.images import Change, ImagePreprocessor
from retinad.pipeline.engine.model_runner import WhileDeviceBusy
from retinad.pipeline.engine.prefetch import NAP_S, PREPARE_SHARE, SPARE_SHARE, Prefetcher
from retinad.pipeline.engine.preprocess import ResizeGeometry
from retinad.pipeline.frames import Frame, Pixels

from .engine_rig import CONFIG, STREAM, alone, assert_same, bad, frame, good, model_of


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sums of the images that were preprocessed."""
    sums: list[int] = []
    make = ImagePreprocessor.make

    def counted(
        preprocessor: ImagePreprocessor, pixels: Pixels, geometry: ResizeGeometry, change: Change | None = None
    ) -> Tensor:
        sums.append(int(pixels.sum()))
        return make(preprocessor, pixels, geometry, change)

    monkeypatch.setattr(ImagePreprocessor, "make", counted)
    return sums


@pytest.fixture
def _gpu_like(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is busy, as on a GPU."""
    monkeypatch.setattr(HostCopy, "pending", property(lambda copy: True))


def opened(engine: Engine, *cameras: str, resize: ResizeMode = ResizeMode.CROP) -> Engine:
    for camera in cameras:
        engine.open_stream(camera, STREAM, resize)
    return engine


@pytest.mark.usefixtures("_gpu_like")
def test_features_are_the_same_and_no_image_is_preprocessed_twice(made: list[int]) -> None:
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


def test_pixels_may_change_once_they_are_prefetched() -> None:
    frames = [frame("a", number) for number in range(4)]
    expected = alone(frames)
    with opened(Engine(CONFIG), "a") as engine:
        good(engine.step(frames[:2]))
        engine.prepare(frames[2:3])
        frames[2].pixels.fill(0)
        (actual,) = good(engine.step(frames[2:3]))
    assert_same(actual, expected[2], tolerance=0.0)


def test_frames_that_cannot_be_preprocessed_fail_in_their_step_only(made: list[int]) -> None:
    thin = frame("a", 0, size=(640, 4))
    wrong = replace(frame("a", 1), pixels=np.zeros((3, 3, 3), np.uint8))
    with opened(Engine(CONFIG), "a") as engine:
        engine.prepare([thin, wrong, frame("nobody", 0)])
        assert len(made) == 1
        reasons = [failure.reason for failure in bad(engine.step([thin, wrong]))]
    assert ["too thin" in reason for reason in reasons] == [True, False]
    assert "expected uint8 [48, 64, 3]" in reasons[1]


def test_an_image_prefetched_for_another_stream_is_preprocessed_again(made: list[int]) -> None:
    one = [frame("a", number) for number in range(2)]
    with opened(Engine(CONFIG), "a") as engine:
        engine.prepare(one)
        engine.close_stream("a")
        opened(engine, "a", resize=ResizeMode.PAD)
        actual = good(engine.step(one))
    assert len(made) == 4
    for features, expected in zip(actual, alone(one, resize=ResizeMode.PAD), strict=True):
        assert_same(features, expected, tolerance=0.0)


@pytest.mark.usefixtures("_gpu_like")
def test_while_device_busy_is_called_once_during_the_last_forward_pass() -> None:
    calls: list[str] = []
    with opened(Engine(CONFIG), "a", "b") as engine:
        model_of(engine).register_forward_pre_hook(lambda *_: calls.append("forward"))
        sizes = {"a": (64, 48), "b": (48, 64)}
        frames = [frame(camera, number, size) for number in range(3) for camera, size in sizes.items()]
        good(engine.step(frames[:1], lambda running: calls.append("busy")))
        assert calls == [], "the frame waits for another"
        good(engine.step(frames[1:], lambda running: calls.append("busy")))
    assert calls == ["forward"] * 4 + ["busy"]


def test_a_step_has_a_result_for_each_forward_pass_and_failures_come_first() -> None:
    sizes = {"a": (64, 48), "b": (48, 64), "c": (64, 48)}
    with opened(Engine(CONFIG), *sizes) as engine:
        frames = [frame(camera, number, size) for number in range(3) for camera, size in sizes.items()]
        results = list(engine.step_outputs([frame("nobody", 0), *frames]))
        assert len(bad(results[0].outcomes)) == 1
        given = [[(one.stamp.camera, one.stamp.source_seq) for one in good(result.outcomes)] for result in results[1:]]
        assert [result.last for result in results] == [False, False, False, False, True]
        block = [("a", 0), ("a", 1), ("c", 0), ("c", 1)]
        assert given == [block, [("b", 0), ("b", 1)], [("a", 2), ("c", 2)], [("b", 2)]]


def test_on_a_cpu_no_prefetch_delays_the_records() -> None:
    with opened(Engine(CONFIG), "a") as engine:
        good(engine.step([frame("a", number) for number in range(3)], lambda running: pytest.fail("prefetched")))


class Clock:
    """Replaces the module `time`."""

    def __init__(self) -> None:
        self.now_s = 5.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


class TimedEngine:
    """An engine whose steps take `run_s` seconds, of which the host waits for all but the first millisecond."""

    def __init__(self, clock: Clock, preprocessing_s: float) -> None:
        self.clock = clock
        self.run_s = 0.0
        self.preprocessing_s = preprocessing_s
        self.prepared_s: list[float] = []

    def step_outputs(
        self, frames: Sequence[Frame], while_device_busy: WhileDeviceBusy | None = None
    ) -> Iterator[StepOutput]:
        assert while_device_busy is not None
        self.clock.now_s += 0.001
        self.launched_s = self.clock.now_s
        while_device_busy(lambda: self.clock.now_s < self.launched_s + self.run_s)
        self.clock.now_s = max(self.clock.now_s, self.launched_s + self.run_s)
        yield StepOutput([], last=True)

    def prepare(self, frames: Sequence[Frame]) -> None:
        self.prepared_s.append(self.clock.now_s - self.launched_s)
        self.clock.now_s += self.preprocessing_s


def test_it_looks_shortly_before_the_end_and_delays_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(prefetch, "time", clock)
    engine = TimedEngine(clock, preprocessing_s=0.002)
    waiting: list[Frame] = [frame("a", 0)]
    steps = Prefetcher(lambda: waiting)

    def step(run_s: float, frames: int = 1) -> float | None:
        """Seconds from the launch until the prefetcher looked at frames, or None if it did not look.

        In that case, the step was late by at most one nap.
        """
        engine.run_s, count = run_s, len(engine.prepared_s)
        assert list(steps.step(engine, [frame("a", number) for number in range(frames)])) == [StepOutput([], last=True)]
        late_s = clock.now_s - engine.launched_s - run_s
        if len(engine.prepared_s) > count:
            assert late_s == pytest.approx(0.0)
            return engine.prepared_s[-1]
        assert 0 <= late_s <= NAP_S + 1e-9
        return None

    def expected(run_s: float) -> float:
        return (1 - SPARE_SHARE) * run_s - PREPARE_SHARE * 0.002

    assert step(0.1) == 0.0, "nothing is known yet"
    assert step(0.1) == pytest.approx(expected(0.1))
    assert step(0.2) == pytest.approx(expected(0.1))
    assert step(0.1, frames=3) == 0.0, "nothing is known of steps of another size"
    assert step(0.1) is None, "shorter than the last one"
    assert step(0.1) == pytest.approx(expected(0.1), abs=NAP_S)
    assert step(60.0) is not None
    assert step(0.005) is None, "the last one was delayed: this one is not"


def test_with_no_frame_waiting_nothing_is_prefetched(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(prefetch, "time", clock)
    engine = TimedEngine(clock, preprocessing_s=0.002)
    assert list(Prefetcher(lambda: []).step(engine, [frame("a", 0)])) == [StepOutput([], last=True)]
    assert engine.prepared_s == []
