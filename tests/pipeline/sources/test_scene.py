"""The scene depends only on seed and number; it moves and has texture."""

import hashlib
import itertools

import numpy as np

from retinad.pipeline.sources.scene import SyntheticReader
from retinad.pipeline.sources.synthetic import SyntheticSpec


def test_the_same_seed_and_number_give_the_same_pixels() -> None:
    spec = SyntheticSpec(width=320, height=240, seed=5)
    first, second = spec.scene(), spec.scene()
    for number in (0, 1, 17, 299, 10**9):
        assert np.array_equal(first.image(number), second.image(number))
    other = SyntheticSpec(width=320, height=240, seed=6).scene()
    assert not np.array_equal(first.image(0), other.image(0))


def test_pixels_are_the_same_on_every_machine_and_release() -> None:
    image = SyntheticSpec(width=64, height=48).scene().image(10)
    assert hashlib.sha256(image.tobytes()).hexdigest()[:16] == "e766f8364427cc70"


def test_the_camera_moves_and_comes_back() -> None:
    scene = SyntheticSpec(width=320, height=240, period=100).scene()
    images = [scene.image(number) for number in range(100)]
    moved = [not np.array_equal(a, b) for a, b in itertools.pairwise(images)]
    assert sum(moved) >= 95
    assert np.array_equal(scene.image(0), scene.image(100))


def test_the_scene_has_texture_everywhere() -> None:
    image = SyntheticSpec().scene().image(0)
    blocks = image.reshape(15, 32, 20, 32, 3).std(axis=(1, 3))
    assert image.std() > 30
    assert blocks.min() > 3


def test_frames_end_and_are_written_in_place() -> None:
    reader = SyntheticReader(SyntheticSpec(width=64, height=48).scene(), fps=10, frames=3)
    out = np.zeros((48, 64, 3), np.uint8)
    times = []
    while (grabbed := reader.grab()) is not None:
        times.append(grabbed.pts_ns)
        assert reader.retrieve(out) is out
        assert reader.retrieve(None).shape == out.shape
    assert times == [0, 100_000_000, 200_000_000]
    assert reader.info.finite
