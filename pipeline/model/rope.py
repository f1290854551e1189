"""Rotary position embeddings, computed for any position instead of read from a finite table.

Angles are float64, and only their cosine and sine are rounded to float32: at frame 10^7 a float32 angle would be wrong
by 0.07 rad, a float64 angle by 10^-9.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BASE_2D = 100.0
BASE_3D = 10000.0


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and sines of the rotation of a step's tokens.

    Attributes:
        cos, sin: float32 [F or 1, P, 1, D/2], or [F or 1, P, 1, 2, D/4] in the halves layout.
        pairs: whether channels 2i and 2i + 1 are rotated together (3D). If not, D is split into halves for y and x, and
            within each the first half is rotated with the second (2D).
    """

    cos: Tensor
    sin: Tensor
    pairs: bool

    def apply(self, tokens: Tensor) -> Tensor:
        """Rotate queries or keys, float32 [F, P, H, D]."""
        if self.pairs:
            return self._rotate(tokens.reshape(*tokens.shape[:-1], -1, 2), dim=-1).flatten(-2)
        return self._rotate(tokens.reshape(*tokens.shape[:-1], 2, 2, -1), dim=-2).flatten(-3)

    def _rotate(self, tokens: Tensor, dim: int) -> Tensor:
        a, b = tokens.unbind(dim)
        return torch.stack((a * self.cos - b * self.sin, b * self.cos + a * self.sin), dim)


def axis_channels(head_dim: int) -> tuple[int, int, int]:
    """Divide a head's channels among time, row and column: 64 into (20, 22, 22), 128 into (40, 44, 44).

    Raises:
        ValueError: the number of channels is odd or too small.
    """
    side = 2 * -(-head_dim // 6)
    time = head_dim - 2 * side
    if time < 2 or time % 2:
        raise ValueError(f"3D rotary embedding requires an even head dimension of 6 or above 8, got {head_dim}")
    return time, side, side


def angles(positions: Tensor, channels: int, base: float) -> Tensor:
    """The angles position * base^(-2i / channels) for i < channels / 2.

    Args:
        positions: float64 [...].
        channels: an even number of channels.
        base: the wavelengths are 2 pi times powers of this number.

    Returns:
        float64 [..., channels / 2].
    """
    exponents = torch.arange(0, channels, 2, dtype=torch.float64, device=positions.device) / channels
    return positions.unsqueeze(-1) * base**-exponents


def rotation_2d(rows: int, columns: int, special_tokens: int, head_dim: int, device: torch.device) -> Rotation:
    """The rotation within a frame: patch (r, c) is at (r + 1, c + 1), special tokens are at (0, 0).

    Raises:
        ValueError: the head dimension is not a multiple of 4.
    """
    if head_dim % 4:
        raise ValueError(f"2D rotary embedding requires a head dimension that is a multiple of 4, got {head_dim}")
    positions = grid_positions(rows, columns, device) + 1  # [rows * columns, 2]
    positions = torch.cat((positions.new_zeros(special_tokens, 2), positions))
    angle = angles(positions, head_dim // 2, BASE_2D)[None, :, None]  # [1, P, 1, 2, D/4]
    return Rotation(angle.cos().float(), angle.sin().float(), pairs=False)


@dataclass(frozen=True, slots=True)
class SpatialPart:
    """The part of a 3D rotation for rows and columns, which is the same for all frames of one size.

    Attributes:
        cos, sin: float32 [P, D/2 - time / 2].
    """

    cos: Tensor
    sin: Tensor


def spatial_part(rows: int, columns: int, special_tokens: int, head_dim: int, device: torch.device) -> SpatialPart:
    """The spatial part for special token j at (j, j) and patch (r, c) at (special_tokens + r, special_tokens + c)."""
    _, row_channels, column_channels = axis_channels(head_dim)
    diagonal = torch.arange(special_tokens, dtype=torch.float64, device=device)
    positions = torch.cat((diagonal[:, None].expand(-1, 2), grid_positions(rows, columns, device) + special_tokens))
    row = angles(positions[:, 0], row_channels, BASE_3D)
    column = angles(positions[:, 1], column_channels, BASE_3D)
    angle = torch.cat((row, column), dim=-1)
    return SpatialPart(angle.cos().float(), angle.sin().float())


def rotation_3d(times: Tensor, spatial: SpatialPart, head_dim: int) -> Rotation:
    """The rotation across frames.

    Args:
        times: float64 [F]; for each frame, the number of frames committed to its stream before it.
        spatial: from `spatial_part`, on the same device.
        head_dim: D, the number of channels per head.
    """
    time_channels, _, _ = axis_channels(head_dim)
    angle = angles(times, time_channels, BASE_3D)
    return Rotation(_join(angle.cos(), spatial.cos), _join(angle.sin(), spatial.sin), pairs=True)


def _join(time: Tensor, spatial: Tensor) -> Tensor:
    frames, tokens = time.shape[0], spatial.shape[0]
    parts = (time.float()[:, None].expand(-1, tokens, -1), spatial[None].expand(frames, -1, -1))
    return torch.cat(parts, dim=-1)[:, :, None]  # [F, P, 1, D/2]


def grid_positions(rows: int, columns: int, device: torch.device) -> Tensor:
    """The row and the column of each patch, row by row: float64 [rows * columns, 2], from 0."""
    row = torch.arange(rows, dtype=torch.float64, device=device)
    column = torch.arange(columns, dtype=torch.float64, device=device)
    return torch.cartesian_prod(row, column).reshape(-1, 2)
