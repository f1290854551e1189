"""The dense prediction head (DPT, arXiv 2103.13413): turns the patch tokens of four layers into a map of each frame.

The depth head predicts a depth and a confidence per pixel, the point head a point and a confidence. All numbers are
float32; on CUDA, convolutions may use TF32, as torch's default is.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..config import DenseHeadConfig
from ..frames import Size
from .attention import EPS

_POSITION_BASE = 100.0
_POSITION_WEIGHT = 0.1
_CACHED_POSITIONS = 64


class DenseHead(nn.Module):
    """Predicts maps. The parameters are named as in the released checkpoints, below `depth_head.` or `point_head.`.

    Args:
        channels: 2C, the number of channels of the tokens.
        values: number of predicted channels besides the confidence: 1 for depth, 3 for points.
        config: the head's shape.
    """

    def __init__(self, channels: int, values: int, config: DenseHeadConfig) -> None:
        super().__init__()
        widths, features = config.channels, config.features
        self.values = values
        self.levels = len(widths)
        self.norm = nn.LayerNorm(channels, eps=EPS)
        self.projects = nn.ModuleList(nn.Conv2d(channels, width, 1) for width in widths)
        self.resize_layers = nn.ModuleList(
            (
                nn.ConvTranspose2d(widths[0], widths[0], 4, stride=4),
                nn.ConvTranspose2d(widths[1], widths[1], 2, stride=2),
                nn.Identity(),
                nn.Conv2d(widths[3], widths[3], 3, stride=2, padding=1),
            )
        )
        self.scratch = _Fusion(widths, features, values + 1)

    def forward(self, layers: Sequence[Tensor], grid: tuple[int, int], size: Size) -> tuple[Tensor, Tensor]:
        """Predict the maps of F frames.

        Args:
            layers: the patch tokens of the head's four layers, from the first to the last: float32 [F, N, 2C] each.
            grid: rows and columns of patches; N is their product.
            size: width and height of the maps, in pixels: those of the model's image.

        Returns:
            float32 [F, h, w, values]: raw numbers, see `depth_of` and `points_of`; and float32 [F, h, w]: the
            confidence, which is above 1.
        """
        ratio = size[0] / size[1]
        levels = []
        for tokens, project, resize in zip(layers, self.projects, self.resize_layers, strict=True):
            picture = self.norm(tokens).transpose(1, 2).unflatten(2, grid)
            levels.append(resize(_positioned(project(picture), ratio)))
        fused = self.scratch.fuse(levels)
        enlarged = functional.interpolate(fused, size=size[::-1], mode="bilinear", align_corners=True)
        out = self.scratch.output_conv2(_positioned(enlarged, ratio)).movedim(1, -1)
        return out[..., :-1], 1 + out[..., -1].exp()


def depth_of(values: Tensor) -> Tensor:
    """The depth [F, h, w] of a depth head's raw numbers [F, h, w, 1], in the stream's unit; it is above 0."""
    return values[..., 0].exp()


def points_of(values: Tensor) -> Tensor:
    """The points [F, h, w, 3] of a point head's raw numbers: world coordinates in the stream's unit."""
    return values.sign() * values.abs().expm1()


class _Residual(nn.Module):
    # The sum adds relu(x) and not x: the released weights were trained with a ReLU that worked in place.
    def __init__(self, features: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(features, features, 3, padding=1)
        self.conv2 = nn.Conv2d(features, features, 3, padding=1)

    def forward(self, picture: Tensor) -> Tensor:
        activated = picture.relu()
        out: Tensor = self.conv2(self.conv1(activated).relu())
        return out + activated


class _FusionLevel(nn.Module):
    # Adds a level's features to those of the next smaller level, and enlarges the sum.
    def __init__(self, features: int, *, smallest: bool) -> None:
        super().__init__()
        self.out_conv = nn.Conv2d(features, features, 1)
        self.resConfUnit1 = None if smallest else _Residual(features)
        self.resConfUnit2 = _Residual(features)

    def forward(self, below: Tensor | None, level: Tensor, size: Sequence[int]) -> Tensor:
        mixed = level
        if below is not None and self.resConfUnit1 is not None:
            mixed = below + self.resConfUnit1(level)
        # A 1x1 convolution and a bilinear interpolation commute, and the picture is smaller before the latter.
        mixed = self.out_conv(self.resConfUnit2(mixed))
        return functional.interpolate(mixed, size=tuple(size), mode="bilinear", align_corners=True)


class _Fusion(nn.Module):
    def __init__(self, widths: Sequence[int], features: int, outputs: int) -> None:
        super().__init__()
        for number, width in enumerate(widths, 1):
            self.add_module(f"layer{number}_rn", nn.Conv2d(width, features, 3, padding=1, bias=False))
        for number in range(1, len(widths) + 1):
            self.add_module(f"refinenet{number}", _FusionLevel(features, smallest=number == len(widths)))
        self.output_conv1 = nn.Conv2d(features, features // 2, 3, padding=1)
        self.output_conv2 = nn.Sequential(
            nn.Conv2d(features // 2, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, outputs, 1)
        )

    def fuse(self, levels: Sequence[Tensor]) -> Tensor:
        reduced = [self.get_submodule(f"layer{number}_rn")(level) for number, level in enumerate(levels, 1)]
        mixed: Tensor | None = None
        for number in range(len(reduced), 0, -1):
            level = reduced[number - 1]
            rows, columns = level.shape[2:]
            size = reduced[number - 2].shape[2:] if number > 1 else (2 * rows, 2 * columns)
            mixed = self.get_submodule(f"refinenet{number}")(mixed, level, size)
        out: Tensor = self.output_conv1(mixed)
        return out


def _positioned(picture: Tensor, ratio: float) -> Tensor:
    rows, columns = picture.shape[2:]
    return picture + _positions(columns, rows, picture.shape[1], ratio, picture.device)


@lru_cache(_CACHED_POSITIONS)
@torch.inference_mode(False)
def _positions(width: int, height: int, channels: int, ratio: float, device: torch.device) -> Tensor:
    # float32 [channels, height, width]: the weighted sines and cosines of each pixel's position.
    diagonal = (ratio**2 + 1) ** 0.5
    frequencies = _POSITION_BASE ** -(torch.arange(channels // 4, dtype=torch.float64) / (channels // 4))

    def part(count: int, half: float) -> Tensor:
        edge = half * (count - 1) / count
        angle = torch.linspace(-edge, edge, count, dtype=torch.float64)[:, None] * frequencies
        return torch.cat((angle.sin(), angle.cos()), dim=1).T

    across = part(width, ratio / diagonal)[:, None].expand(-1, height, -1)
    down = part(height, 1 / diagonal)[:, :, None].expand(-1, -1, width)
    return (_POSITION_WEIGHT * torch.cat((across, down))).float().to(device)
