"""A rate cap leaves out frames or delays them, also across passes; in live mode a file keeps its own timing."""

from itertools import pairwise

import pytest

from retinad.pipeline.capture.pacing import SECOND_NS, Pacer
from retinad.pipeline.config import CameraConfig, CaptureMode
from retinad.pipeline.sources.reader import SourceInfo

CAMERA = SourceInfo(backend="v4l2", fps=30.0, finite=False, live=True)
FILE = SourceInfo(backend="ffmpeg", fps=25.0)


def config(mode: CaptureMode = CaptureMode.LIVE, fps: float | None = None) -> CameraConfig:
    return CameraConfig("cam", "x", mode=mode, fps=fps)


@pytest.mark.parametrize("mode", list(CaptureMode))
@pytest.mark.parametrize(
    ("source_fps", "cap", "expected"), [(30, 10, 10), (30, 29, 29), (30, 30, 30), (10, 30, 10), (30, 0.5, 0.5)]
)
def test_a_cap_drops_frames_of_a_camera(mode: CaptureMode, source_fps: float, cap: float, expected: float) -> None:
    pacer = Pacer(CAMERA, config(mode, cap))
    jitter_ns = [0, 4_000_000, -4_000_000, 2_000_000]
    arrivals = [round(n * SECOND_NS / source_fps) + jitter_ns[n % 4] for n in range(round(source_fps * 20))]
    kept = [now for now in arrivals if pacer.wait_ns(now, None) == 0]
    assert len(kept) / 20 == pytest.approx(expected, rel=0.02, abs=0.06)


def test_without_a_cap_all_frames_of_a_camera_pass() -> None:
    pacer = Pacer(CAMERA, config())
    assert [pacer.wait_ns(now, None) for now in (0, 1, 2)] == [0, 0, 0]


def test_lossless_files_are_not_held_back() -> None:
    pacer = Pacer(FILE, config(CaptureMode.LOSSLESS))
    assert [pacer.wait_ns(0, n * 40_000_000) for n in range(3)] == [0, 0, 0]


def test_live_files_keep_their_uneven_timing() -> None:
    pacer = Pacer(FILE, config())
    waits = [pacer.wait_ns(0, pts) for pts in (1000, 1000 + 40_000_000, 1000 + 540_000_000)]
    assert waits == [0, 40_000_000, 540_000_000]


@pytest.mark.parametrize("pts", [[None] * 4, [0] * 4, [5, 4, 3, 2], [0, 10**13, 2 * 10**13, 3 * 10**13]])
def test_wrong_timestamps_fall_back_to_the_rate(pts: list[int | None]) -> None:
    pacer = Pacer(FILE, config())
    assert [pacer.wait_ns(0, time) for time in pts] == [0, 40_000_000, 80_000_000, 120_000_000]


def test_a_cap_sets_the_rate_of_a_file() -> None:
    pacer = Pacer(FILE, config(CaptureMode.LOSSLESS, fps=5))
    assert [pacer.wait_ns(0, n * 40_000_000) for n in range(3)] == [0, 200_000_000, 400_000_000]


def test_a_late_reader_does_not_rush_indefinitely() -> None:
    pacer = Pacer(FILE, config())
    pacer.wait_ns(0, 0)
    assert pacer.wait_ns(10 * SECOND_NS, 40_000_000) == 0
    assert pacer.wait_ns(10 * SECOND_NS, 80_000_000) == 40_000_000


IMAGES = SourceInfo(backend="images", fps=30.0)
SCENE = SourceInfo(backend="synthetic", fps=30.0)


def play(pacer: Pacer, pts: list[int | None], now: int = 0) -> list[int]:
    """The times at which frames are shown by a source that reads without delay."""
    shown = []
    for time in pts:
        if (wait := pacer.wait_ns(now, time)) is not None:
            now += wait
            shown.append(now)
    return shown


@pytest.mark.parametrize("cap", [3.0, 10.0, 24.0, 0.5])
@pytest.mark.parametrize("info", [FILE, SCENE])
def test_a_cap_leaves_out_frames_of_a_live_file(info: SourceInfo, cap: float) -> None:
    """It is no slow motion: media time advances with the clock."""
    pacer = Pacer(info, config(fps=cap))
    rate = info.fps or 0
    pts: list[int | None] = [round(n * SECOND_NS / rate) for n in range(round(rate * 20))]
    kept = [(time, pacer.wait_ns(0, time)) for time in pts]
    assert len([wait for _, wait in kept if wait is not None]) / 20 == pytest.approx(cap, rel=0.02, abs=0.06)
    for time, wait in kept:
        assert wait is None or wait == pytest.approx(time, abs=1000)


def test_a_cap_above_its_rate_does_not_hurry_a_live_file() -> None:
    assert play(Pacer(FILE, config(fps=100)), [0, 40_000_000, 80_000_000]) == [0, 40_000_000, 80_000_000]


def test_a_cap_sets_the_rate_of_images() -> None:
    """They have no pace of their own: none is left out."""
    assert play(Pacer(IMAGES, config(fps=2)), [None] * 3) == [0, 500_000_000, SECOND_NS]


@pytest.mark.parametrize("mode", list(CaptureMode))
@pytest.mark.parametrize("info", [IMAGES, FILE, SCENE])
@pytest.mark.parametrize("frames", [1, 2])
def test_a_cap_holds_across_passes(mode: CaptureMode, info: SourceInfo, frames: int) -> None:
    pacer, now, shown = Pacer(info, config(mode, fps=2)), 0, []
    pts: list[int | None] = [None if info is IMAGES else n * 40_000_000 for n in range(frames)]
    for _ in range(50):
        shown += play(pacer, pts, now)
        now = shown[-1]
        pacer.next_pass(info)
    gaps = [(later - one) / SECOND_NS for one, later in pairwise(shown)]
    assert gaps
    assert min(gaps) >= 0.45


@pytest.mark.parametrize("frames", [1, 3])
def test_a_pass_lasts_as_long_as_its_frames(frames: int) -> None:
    pacer, now = Pacer(FILE, config()), 0
    for number in range(10):
        shown = play(pacer, [n * 40_000_000 for n in range(frames)], now)
        now = shown[-1]
        assert shown[0] == number * frames * 40_000_000
        pacer.next_pass(FILE)


def test_a_polled_source_keeps_to_the_cap_itself() -> None:
    pacer = Pacer(SourceInfo(backend="snapshot", fps=2.0, finite=False, live=True, paced=True), config(fps=2))
    assert [pacer.wait_ns(now, None) for now in (0, 300_000_000, SECOND_NS)] == [0, 0, 0]
