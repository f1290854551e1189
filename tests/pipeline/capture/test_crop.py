"""A crop cuts the same part out of every kind of source, and says where it was."""

from collections.abc import Callable
from pathlib import Path

import anyio
import cv2
import numpy as np
import pytest

from retinad.pipeline.capture.camera import CameraState
from retinad.pipeline.capture.capture import open_capture
from retinad.pipeline.capture.probe import probe
from retinad.pipeline.capture.starts import CaptureStarts
from retinad.pipeline.errors import SourceFault
from retinad.pipeline.frames import CropPlace
from retinad.pipeline.sources.reader import SourceInfo
from retinad.pipeline.sources.synthetic import SyntheticSpec

from .reading import every, failure
from .rig import live, lossless, play
from .servers import FakeServer, Handler, snapshot

pytestmark = pytest.mark.anyio

CROP = (100, 40, 81, 33)


async def test_the_pixels_are_those_of_the_part() -> None:
    scene = SyntheticSpec(width=320, height=200).scene()
    rig = await play(lossless("synthetic:?width=320&height=200&frames=20", crop=CROP), keep=True)
    assert len(rig.frames) == 20
    for number, frame in enumerate(rig.frames):
        assert np.array_equal(frame.pixels, scene.image(number)[40:73, 100:181])
        assert frame.stamp.source_size == (81, 33)
        assert frame.stamp.crop == CropPlace(100, 40, (320, 200))
    assert rig.camera.status.size == (320, 200)


async def test_videos_images_and_snapshots_are_cropped(
    make_video: Callable[..., Path], make_folder: Callable[..., Path], serve: Callable[[Handler], FakeServer]
) -> None:
    url = f"http://127.0.0.1:{serve(snapshot()).port}/x.jpg"
    for source in (make_video(frames=3), make_folder(3), url):
        async with open_capture(lossless(source, crop=(0, 0, 320, 100))) as capture:
            shapes = [(captured.pixels.shape, captured.crop) async for captured in every(capture)]
        assert set(shapes) == {((100, 320, 3), CropPlace(0, 0, (320, 240)))}
    found = await probe(live(url, crop=(0, 0, 8, 8)), CaptureStarts())
    assert isinstance(found, SourceInfo)
    assert (found.width, found.height) == (8, 8)


@pytest.mark.parametrize("crop", [(0, 0, 321, 10), (320, 0, 1, 1), (0, 200, 10, 41)])
async def test_a_crop_beyond_the_frame_is_a_failure(
    make_video: Callable[..., Path], crop: tuple[int, int, int, int]
) -> None:
    error = await failure(lossless(make_video(frames=3), crop=crop))
    assert error.fault is SourceFault.UNREADABLE
    assert f"crop = {list(crop)} reaches beyond a frame of 320x240 pixels" in str(error)


async def test_images_that_are_too_small_for_the_crop_are_left_out(tmp_path: Path) -> None:
    for number, side in enumerate((64, 32, 64)):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.full((side, side, 3), number, np.uint8))
    with anyio.fail_after(30):
        rig = await play(lossless(tmp_path, crop=(20, 20, 40, 40)))
    assert rig.order() == [(0, 0), (0, 2)]
    assert rig.queue.counters.failed == 1
    assert rig.statuses[-1].state is CameraState.ENDED
    assert any("reaches beyond a frame of 32x32" in line for line in rig.log)


async def test_if_all_images_are_too_small_the_reason_says_so(tmp_path: Path) -> None:
    """In the camera's status, not in the log alone; and `retinad cameras` says the same."""
    for number in range(3):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.zeros((32, 32, 3), np.uint8))
    config = lossless(tmp_path, crop=(20, 20, 40, 40), retry=False)
    with anyio.fail_after(30):
        rig = await play(config)
    said = "none of its frames can be read; of the last one: crop = [20, 20, 40, 40] reaches beyond a frame of 32x32"
    assert rig.statuses[-1].state is CameraState.FAILED
    assert said in (rig.statuses[-1].reason or "")
    assert rig.queue.counters.failed == 3
    found = await probe(config, CaptureStarts())
    assert said in str(found)
