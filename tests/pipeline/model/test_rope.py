"""Rotary embeddings: layouts, and angles that are correct at any frame number."""

import math

import numpy as np
import pytest
import torch

from retinad.pipeline.model.rope import BASE_3D, angles, axis_channels, rotation_2d, rotation_3d, spatial_part

CPU = torch.device("cpu")


@pytest.mark.parametrize(("head_dim", "expected"), [(64, (20, 22, 22)), (128, (40, 44, 44)), (16, (4, 6, 6))])
def test_a_head_is_split_as_in_the_checkpoints(head_dim: int, expected: tuple[int, int, int]) -> None:
    assert axis_channels(head_dim) == expected


@pytest.mark.parametrize("head_dim", [4, 8, 15])
def test_an_impossible_head_is_refused(head_dim: int) -> None:
    with pytest.raises(ValueError, match="head dimension"):
        axis_channels(head_dim)


def test_a_head_that_does_not_split_into_quarters_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        rotation_2d(1, 1, 1, 6, CPU)


@pytest.mark.parametrize("frame", [0, 1, 320, 10**4, 10**6, 10**7])
def test_rotation_of_any_frame_number_is_exact_to_float32(frame: int) -> None:
    """A float32 angle is wrong by 1.7e-3 rad at frame 10^5 and by 6.7e-2 at 10^7."""
    rotation = rotation_3d(torch.tensor([frame], dtype=torch.float64), spatial_part(2, 3, 6, 64, CPU), 64)
    exact = [math.fmod(frame * BASE_3D ** (-2 * i / 20), 2 * math.pi) for i in range(10)]
    angle = torch.atan2(rotation.sin[0, 0, 0, :10].double(), rotation.cos[0, 0, 0, :10].double()).numpy()
    difference = np.remainder(angle - np.array(exact) + math.pi, 2 * math.pi) - math.pi
    # 6e-8 for rounding sine and cosine to float32; the float64 angle itself is within 2e-9 at 10^7.
    assert np.abs(difference).max() <= 1e-7


def test_scores_depend_on_the_distance_in_time_only() -> None:
    """The reference's table ends at frame 1024, after which the time part silently vanishes."""
    spatial = spatial_part(2, 2, 3, 16, CPU)
    query, key = torch.randn(2, 1, 7, 2, 16, generator=torch.Generator().manual_seed(0))
    scores = []
    for shift in (0, 10**6):
        times = torch.tensor([[11.0 + shift], [4.0 + shift]], dtype=torch.float64)
        rotated = rotation_3d(times[0], spatial, 16).apply(query), rotation_3d(times[1], spatial, 16).apply(key)
        scores.append(torch.einsum("fphd,fqhd->fhpq", *rotated))
    torch.testing.assert_close(scores[1], scores[0], rtol=0, atol=1e-5)


def test_pairs_and_halves_rotate_the_channels_of_their_layout() -> None:
    one = torch.zeros(1, 1, 1, 16)
    one[..., 0] = 1.0
    spatial = spatial_part(0, 0, 1, 16, CPU)
    pairs = rotation_3d(torch.tensor([1.0], dtype=torch.float64), spatial, 16).apply(one)[0, 0, 0]
    assert pairs[:2].tolist() == pytest.approx([math.cos(1), math.sin(1)])
    halves = rotation_2d(1, 1, 0, 16, CPU).apply(one)[0, 0, 0]
    assert halves[[0, 4]].tolist() == pytest.approx([math.cos(1), math.sin(1)])
    assert pairs.count_nonzero() == halves.count_nonzero() == 2


def test_angles_are_positions_times_inverse_powers_of_the_base() -> None:
    found = angles(torch.tensor([0.0, 3.0], dtype=torch.float64), 4, 100.0)
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.0], [3.0, 0.3]], dtype=torch.float64))
