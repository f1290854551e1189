"""The camera head: estimates each frame's pose and field of view from its camera token, in several rounds.

Each round refines the estimate of the previous one with the same blocks. The blocks attend across time, so each pair of
a round and a block has keys and values of its own: one token per keyframe (arXiv 2604.14141). All numbers are float32,
because later rounds amplify rounding errors about 500 times.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..config import CameraHeadConfig
from .attention import EPS, Attention, Mixer
from .blocks import Block, Mlp
from .rope import Rotation, SpatialPart, axis_channels, rotation_3d

POSE_CHANNELS = 9
"""Translation x y z, quaternion x y z w, vertical and horizontal field of view in radians."""

_MODULATION_EPS = 1e-6


class PoseMemory(Protocol):
    """The camera head's keys and values of a step's streams.

    Attributes:
        times: float64 [F], for each frame of the step, the number of frames committed to its stream before it.
    """

    times: Tensor

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store keys and values, then attend to those that each frame sees.

        Args:
            layer: round * blocks + block.
            query, key, value: float32 [F, 1, H, D].

        Returns:
            float32 [F, 1, H, D].
        """


class CameraHead(nn.Module):
    """Estimates poses. The parameters are named as in the released checkpoints, below `camera_head.`.

    Args:
        channels: 2C, the number of channels of the camera token.
        config: the head's shape.
    """

    def __init__(self, channels: int, config: CameraHeadConfig) -> None:
        super().__init__()
        self.config = config
        self.head_dim = channels // config.heads
        self.empty_pose_tokens = nn.Parameter(torch.zeros(1, 1, POSE_CHANNELS))
        self.token_norm = nn.LayerNorm(channels, eps=EPS)
        self.embed_pose = nn.Linear(POSE_CHANNELS, channels)
        self.poseLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(channels, 3 * channels))
        self.trunk = nn.ModuleList(_block(channels, config) for _ in range(config.blocks))
        self.trunk_norm = nn.LayerNorm(channels, eps=EPS)
        self.pose_branch = _PoseBranch(channels)

    def forward(self, tokens: Tensor, memory: PoseMemory) -> Tensor:
        """Estimate the poses of F frames, and store their keys and values.

        Args:
            tokens: the camera tokens of the deepest layer, float32 [F, 2C].
            memory: the head's memory of the frames' streams.

        Returns:
            float32 [F, 9]: translation, unnormalised quaternion (scalar last), and fields of view, which are not
            negative. The pose maps camera coordinates to world coordinates.
        """
        rotation = self._rotation(memory.times) if self.config.rope else None
        return self.refine(tokens[:, None], lambda layer: _Mix(memory, layer, rotation))[:, 0]

    def refine(self, tokens: Tensor, mixer: Callable[[int], Mixer]) -> Tensor:
        """Estimate the pose of each token, in all rounds.

        Args:
            tokens: float32 [F, N, 2C].
            mixer: the mixer of the block with the number round * blocks + block.

        Returns:
            float32 [F, N, 9], see `forward`.
        """
        tokens = self.token_norm(tokens)
        normed = functional.layer_norm(tokens, tokens.shape[-1:], eps=_MODULATION_EPS)
        pose, seen = torch.zeros_like(tokens[..., :POSE_CHANNELS]), self.empty_pose_tokens
        for number in range(self.config.rounds):
            shift, scale, gate = self.poseLN_modulation(self.embed_pose(seen)).chunk(3, dim=-1)
            mixed = gate * (normed * (1 + scale) + shift) + tokens
            for index, block in enumerate(self.trunk):
                mixed = block(mixed, mixer(number * self.config.blocks + index))
            pose = pose + self.pose_branch(self.trunk_norm(mixed))
            seen = pose
        return torch.cat((pose[..., :7], pose[..., 7:].relu()), dim=-1)

    def _rotation(self, times: Tensor) -> Rotation:
        # Frame f is at time f, row 0 and column 0.
        still = (self.head_dim - axis_channels(self.head_dim)[0]) // 2
        ones = torch.ones(1, still, device=times.device)
        return rotation_3d(times, SpatialPart(ones, torch.zeros_like(ones)), self.head_dim)


class _PoseBranch(Mlp):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels // 2, torch.float32)
        self.fc2 = nn.Linear(channels // 2, POSE_CHANNELS)


class _Mix:
    # The attention of one block in one round; a `Mixer`.
    def __init__(self, memory: PoseMemory, layer: int, rotation: Rotation | None) -> None:
        self._memory = memory
        self._layer = layer
        self._rotation = rotation

    def __call__(self, layer: nn.Module, tokens: Tensor) -> Tensor:
        out: Tensor = layer(tokens, self._attend)
        return out

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self._rotation is not None:
            query, key = self._rotation.apply(query), self._rotation.apply(key)
        return self._memory.attend(self._layer, query, key, value)


def _block(channels: int, config: CameraHeadConfig) -> Block:
    attention = Attention(channels, config.heads, qk_norm=False, dtype=torch.float32)
    return Block(attention, channels, 4 * channels, eps=EPS, dtype=torch.float32)
