"""The rotary embedding of HorizonStream: time, row and column share the channels of a head (arXiv 2605.23889).

A head's D channels are cut into D // 3 for time, D // 3 for rows and the rest for columns. Within a part of d channels,
channel i is rotated with channel i + d // 2, by position * 100^(-2i / (2 (d // 2))); an odd last channel stays. Angles
are float64, as in `rope`.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from .rope import angles, grid_positions

BASE = 100.0


@dataclass(frozen=True, slots=True)
class PartialRotation:
    """Cosines and sines of the rotation of a step's tokens.

    Attributes:
        cos: float32 [F, P, 1, D].
        sin: float32 [F, P, 1, D], with the sign that belongs to the channel.
        partners: int64 [D], the channel with which each channel is rotated; itself, if it stays.
    """

    cos: Tensor
    sin: Tensor
    partners: Tensor

    def apply(self, tokens: Tensor) -> Tensor:
        """Rotate the first P of the queries or keys [F, P or more, H, D] of each frame."""
        count = self.cos.shape[1]
        first = tokens[:, :count]
        turned = first * self.cos + first[..., self.partners] * self.sin
        return turned if count == tokens.shape[1] else torch.cat((turned, tokens[:, count:]), dim=1)


@dataclass(frozen=True, slots=True)
class PatchTables:
    """The part of a rotation for rows and columns, for P - 1 patches, and the partners of all channels.

    Attributes:
        cos, sin: float32 [P - 1, D minus the channels of time].
        partners: see `PartialRotation`.
    """

    cos: Tensor
    sin: Tensor
    partners: Tensor


def part_channels(head_dim: int) -> tuple[int, int, int]:
    """Divide a head's channels among time, row and column: 64 into (21, 21, 22).

    Raises:
        ValueError: there are less than 6 channels, so that a part could not be rotated.
    """
    if head_dim < 6:
        raise ValueError(f"this rotary embedding requires a head dimension of at least 6, got {head_dim}")
    third = head_dim // 3
    return third, third, head_dim - 2 * third


def patch_tables(rows: int, columns: int, head_dim: int, device: torch.device) -> PatchTables:
    """The tables for a grid of patches: the patch in row y and column x is at (y + 1, x + 1)."""
    _, *widths = parts = part_channels(head_dim)
    positions = grid_positions(rows, columns, device) + 1
    tables = [axis_tables(positions[:, axis], width) for axis, width in enumerate(widths)]
    cos, sin = (torch.cat(tensors, dim=-1) for tensors in zip(*tables, strict=True))
    return PatchTables(cos, sin, channel_partners(parts).to(device))


def rotation(times: Tensor, patches: PatchTables, head_dim: int) -> PartialRotation:
    """The rotation of frames that have one token at position (0, 0, 0) before their patches.

    Args:
        times: float64 [F], the position in time of each frame's patches.
        patches: from `patch_tables`, on the same device.
        head_dim: D, the number of channels per head.
    """
    cos, sin = axis_tables(times, part_channels(head_dim)[0])
    still = torch.ones(len(times), 1, head_dim, device=times.device)
    return PartialRotation(
        torch.cat((still, _joined(cos, patches.cos)), dim=1)[:, :, None],
        torch.cat((torch.zeros_like(still), _joined(sin, patches.sin)), dim=1)[:, :, None],
        patches.partners,
    )


def _joined(time: Tensor, space: Tensor) -> Tensor:
    frames, tokens = len(time), len(space)
    return torch.cat((time[:, None].expand(-1, tokens, -1), space[None].expand(frames, -1, -1)), dim=-1)


def axis_tables(positions: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of one part, float32 [N, width], for positions float64 [N] on its axis."""
    angle = angles(positions, width // 2 * 2, BASE)
    cos, sin, rest = angle.cos(), angle.sin(), angle.new_zeros(len(angle), width % 2)
    return torch.cat((cos, cos, rest + 1), dim=-1).float(), torch.cat((-sin, sin, rest), dim=-1).float()


def channel_partners(parts: tuple[int, ...]) -> Tensor:
    """The channel with which each channel is rotated, int64 [D], for parts of these numbers of channels."""
    found: list[int] = []
    for start, width in zip(accumulate((0, *parts)), parts, strict=False):
        half = width // 2
        found += [start + half + i for i in range(half)]
        found += [start + i for i in range(half)]
        found += [start + width - 1] * (width % 2)
    return torch.tensor(found)
