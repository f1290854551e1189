"""Real photographs, if a checkout of the project's data is beside this one."""

from pathlib import Path

import anyio
import cv2
import numpy as np
import pytest

from .rig import lossless, play

pytestmark = pytest.mark.anyio
FRAMES = Path(__file__).resolve().parents[4] / "shared" / "frames"


@pytest.mark.skipif(not FRAMES.is_dir(), reason="needs the photographs in ../shared/frames")
async def test_photographs_arrive_as_opencv_reads_them() -> None:
    rig = await play(lossless(FRAMES), keep=True)
    paths = sorted([path async for path in anyio.Path(FRAMES).glob("*.jpg")])
    assert rig.order() == [(0, n) for n in range(len(paths))]
    for frame, path in zip(rig.frames, paths, strict=True):
        expected = cv2.imread(str(path))
        assert expected is not None
        assert np.array_equal(frame.pixels, expected)
