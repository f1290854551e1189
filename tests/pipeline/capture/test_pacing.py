"""A rate cap drops frames of a camera and delays those of a file; in live mode a file keeps its own timing."""

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
