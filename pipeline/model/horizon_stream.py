"""The network of HorizonStream (arXiv 2605.23889), composed of the same parts as `aggregator`.

A frame has P tokens: one from which its metric scale is read, then its patches. Beside them, it has X pose tokens for
each frame of its window; these are made anew for every frame, and stand for the poses of the window's frames. A pair of
blocks does three things:

1. The frame block runs over each frame's P tokens, then over the pose tokens of each slot of the window. These attend
   to the P tokens of the slot's frame, whose keys and values are in the stream's cache, and to themselves.
2. At some pairs, a block of Kimi Delta Attention runs over the whole row: the P tokens, then the slots' pose tokens.
3. The global block runs over the row. It attends to the P tokens of the window's frames and to the row's pose tokens.

A stream's first step has a whole window of frames. Only there, a row knows something of later frames: its window is all
frames of the step, the scan of the delta blocks goes through all slots, and all rows share the gates of global blocks.

Dimension letters: F is the number of frames, P of tokens per frame, W of frames in the window, X of pose tokens per
slot, and C of channels; A = P + W X is the number of tokens in a row.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..config import HorizonConfig, NetworkConfig
from ..frames import OutputKind
from .aggregator import CACHED_GRIDS, MEAN, STD
from .attention import EPS, Attention, CacheStep, DeltaMixer, attend_frame, mean_token
from .backbones import build_patch_embed
from .blocks import Block
from .camera_head import CameraHead
from .delta_attention import KimiDeltaAttention
from .delta_state import streaming_config
from .dense_head import DenseHead
from .horizon_keys import HORIZON_KEYS
from .horizon_rope import PartialRotation, PatchTables, patch_tables, rotation
from .network import FrameNumbers, LayerOutput, Network, Slots
from .scale_head import MetricScaleHead


class HorizonStream(Network):
    """The network of HorizonStream.

    Args:
        network: the network's shape; `network.horizon` is set.
        dtype: number format of linear layers and convolutions; everything else is float32.

    Raises:
        ValueError: the shape is impossible.
    """

    file_keys = HORIZON_KEYS

    def __init__(self, network: NetworkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.horizon = network, _checked(network)
        channels = network.channels
        self.patch_embed = build_patch_embed(network, dtype)
        self.metric_readout_token = nn.Parameter(torch.zeros(1, 1, channels))
        self.pose_token = nn.Parameter(torch.zeros(2, self.horizon.pose_tokens, channels))
        self.frame_blocks = nn.ModuleList(_gated_block(network, dtype) for _ in range(network.depth))
        self.global_blocks = nn.ModuleList(_gated_block(network, dtype) for _ in range(network.depth))
        self.global_gla_blocks = nn.ModuleDict(
            {str(layer): _delta_block(network, dtype) for layer in self.horizon.memory_layers}
        )
        # Constants: real tensors even if the parameters are on the meta device.
        self.register_buffer("mean", torch.tensor(MEAN, device="cpu").view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD, device="cpu").view(3, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor
        self._tables: dict[tuple[int, int], PatchTables] = {}

    @property
    def head_dim(self) -> int:
        """D, the number of channels per head."""
        return self.network.channels // self.network.heads

    def add_heads(self, outputs: Collection[OutputKind]) -> None:
        """See `Network`. The metric scale belongs to poses and depths; there is no head for points."""
        channels = 2 * self.network.channels
        if OutputKind.POINTS in outputs:
            raise ValueError("HorizonStream has no point head: clients compute points from depth and pose")
        if OutputKind.POSE in outputs:
            self.camera_head = CameraHead(channels, self.network.camera_head)
        if OutputKind.DEPTH in outputs:
            self.depth_head = DenseHead(channels, 1, self.network.dense_head)
        if self.camera_head is not None or self.depth_head is not None:
            self.scale_head = MetricScaleHead(channels, self.horizon.scale_hidden)

    def forward(
        self, images: Tensor, numbers: FrameNumbers, step: CacheStep, layers: tuple[int, ...]
    ) -> tuple[LayerOutput, ...]:
        """See `Network`. The windows of all frames must be equally long.

        The deepest pair's output has `slots`.
        """
        turn = self._rotation(images.shape[2:], numbers)
        groups = _gate_groups(numbers)
        tokens, poses = self._frame_tokens(images), self._pose_tokens(numbers)
        outputs: list[LayerOutput] = []
        for layer in range(layers[-1] + 1):
            tokens, poses = self._frame_block(layer, tokens, poses, turn, step)
            row = self._memory_block(layer, torch.cat((tokens, poses.flatten(1, 2)), dim=1), step)
            row = self.global_blocks[layer](row, _RowMixer(turn, step, 2 * layer + 1, groups))
            after, own = row.tensor_split((tokens.shape[1],), dim=1)
            own = own.view(poses.shape)
            if layer in layers:
                slots = self._slots(layer, poses, own, numbers)
                outputs.append(LayerOutput(layer, tokens, after, slots))
            tokens, poses = after, own
        return tuple(outputs)

    def _frame_block(
        self, layer: int, tokens: Tensor, poses: Tensor, turn: PartialRotation, step: CacheStep
    ) -> tuple[Tensor, Tensor]:
        block, index = self.frame_blocks[layer], 2 * layer
        tokens = block(tokens, _FrameMixer(turn, step, index))
        return tokens, block(poses, _SlotMixer(step, index))

    def _memory_block(self, layer: int, row: Tensor, step: CacheStep) -> Tensor:
        if layer not in self.horizon.memory_layers:
            return row
        mixer = DeltaMixer(step, self.horizon.memory_layers.index(layer))
        out: Tensor = self.global_gla_blocks[str(layer)](row, mixer)
        return out

    def _frame_tokens(self, images: Tensor) -> Tensor:
        patches: Tensor = self.patch_embed((images - self.mean) / self.std)
        return torch.cat((self.metric_readout_token.expand(len(patches), -1, -1), patches), dim=1)

    def _pose_tokens(self, numbers: FrameNumbers) -> Tensor:
        # [F, W, X, C]: the first kind of token in the frame's own slot, the second kind in the others.
        window = numbers.windows[0]
        kinds = torch.ones(len(numbers.windows), window, dtype=torch.int64)
        for row, own in zip(kinds, _own_slots(numbers), strict=True):
            row[own] = 0
        return self.pose_token[kinds.to(self.pose_token.device, non_blocking=True)]

    def _slots(self, layer: int, poses: Tensor, own: Tensor, numbers: FrameNumbers) -> Slots | None:
        if layer < self.network.depth - 1:
            return None
        seen = _seen_slots(numbers)
        if seen is not None:
            seen = seen.to(poses.device, non_blocking=True)
        return Slots(torch.cat((poses[:, :, 0], own[:, :, 0]), dim=-1), seen)

    def _rotation(self, size: Sequence[int], numbers: FrameNumbers) -> PartialRotation:
        rows, columns = (side // self.network.patch_size for side in size)
        times = torch.tensor(self._times(numbers), dtype=torch.float64).to(self.mean.device, non_blocking=True)
        return rotation(times, self.grid_tables(rows, columns), self.head_dim)

    def _times(self, numbers: FrameNumbers) -> list[int]:
        # One frame a step, the first step being number 0: step c has time c mod period, and its frame one more.
        pairs = zip(numbers.times, numbers.later, strict=True)
        return [1 + (number if later is None else (later + 1) % self.horizon.period) for number, later in pairs]

    def grid_tables(self, rows: int, columns: int) -> PatchTables:
        """The tables for a grid of patches. They are cached per grid."""
        cached = self._tables.get((rows, columns))
        if cached is None:
            while len(self._tables) >= CACHED_GRIDS:
                self._tables.pop(next(iter(self._tables)))
            cached = self._tables[rows, columns] = patch_tables(rows, columns, self.head_dim, self.mean.device)
        return cached


@dataclass(frozen=True, slots=True)
class _FrameMixer:
    # The frame block over P tokens, whose keys and values the slots of this frame and of later ones read.
    turn: PartialRotation
    step: CacheStep
    index: int

    def __call__(self, layer: nn.Module, tokens: Tensor) -> Tensor:
        out: Tensor = layer(tokens, self._attend)
        return out

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key = self.turn.apply(key).to(value.dtype)
        self.step.append(self.index, key, value)
        return attend_frame(self.turn.apply(query), key, value)


@dataclass(frozen=True, slots=True)
class _SlotMixer:
    # The frame block over the pose tokens [F, W, X, C], which have no position.
    step: CacheStep
    index: int

    def __call__(self, layer: nn.Module, tokens: Tensor) -> Tensor:
        out: Tensor = layer(tokens, self._attend)
        return out

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.step.attend_slots(self.index, query.to(value.dtype), key.to(value.dtype), value)


@dataclass(frozen=True, slots=True)
class _RowMixer:
    # The global block over rows [F, A, C]. `groups`: the numbers of consecutive frames that share their gates.
    turn: PartialRotation
    step: CacheStep
    index: int
    groups: tuple[int, ...]

    def __call__(self, layer: nn.Module, tokens: Tensor) -> Tensor:
        out: Tensor = layer(tokens, self._attend, self._pool)
        return out

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        count = self.turn.cos.shape[1]
        query, key = (self.turn.apply(tokens).to(value.dtype) for tokens in (query, key))
        self.step.append(self.index, key[:, :count], value[:, :count])
        return self.step.attend_rows(self.index, query, key[:, count:], value[:, count:])

    def _pool(self, tokens: Tensor) -> Tensor:
        means = mean_token(tokens)
        if len(self.groups) == len(means):
            return means
        parts = means.split_with_sizes(self.groups)
        return torch.cat([part.mean(0, keepdim=True).expand(len(part), -1, -1) for part in parts])


def _gate_groups(numbers: FrameNumbers) -> tuple[int, ...]:
    # The frames of a stream's first step form one group, and every later frame one of its own.
    groups: list[int] = []
    for number, later, window in zip(numbers.times, numbers.later, numbers.windows, strict=True):
        if later is not None:
            groups.append(1)
        elif number == 0:
            groups.append(window)
    return tuple(groups)


def _own_slots(numbers: FrameNumbers) -> list[int]:
    # The slot that stands for the frame itself: the last one, but in the first step that of its number.
    return [
        number if later is None else window - 1
        for number, later, window in zip(numbers.times, numbers.later, numbers.windows, strict=True)
    ]


def _seen_slots(numbers: FrameNumbers) -> Tensor | None:
    # Which slots each slot sees in the camera head, bool [F, W, W]; None if each sees all. In the first step, the slots
    # up to the row's own see each other, and every slot sees the first.
    if all(later is not None for later in numbers.later):
        return None
    window = numbers.windows[0]
    seen = torch.ones(len(numbers.windows), window, window, dtype=torch.bool)
    for row, number, later in zip(seen, numbers.times, numbers.later, strict=True):
        if later is None:
            row[number + 1 :, 1:] = False
            row[:, max(1, number + 1) :] = False
    return seen


def _checked(network: NetworkConfig) -> HorizonConfig:
    horizon = network.horizon
    if horizon is None:
        raise ValueError("network.horizon must be set for HorizonStream")
    if network.channels % network.heads:
        raise ValueError(f"channels must be a multiple of heads, got {network.channels} and {network.heads}")
    if not all(0 <= layer < network.depth for layer in horizon.memory_layers):
        raise ValueError(f"memory_layers must be below depth = {network.depth}, got {list(horizon.memory_layers)}")
    return horizon


def _gated_block(network: NetworkConfig, dtype: torch.dtype) -> Block:
    attention = Attention(network.channels, network.heads, qk_norm=True, dtype=dtype, gate=True)
    return _block(network, attention, dtype)


def _delta_block(network: NetworkConfig, dtype: torch.dtype) -> Block:
    return _block(network, KimiDeltaAttention(streaming_config(network.channels, network.heads), dtype), dtype)


def _block(network: NetworkConfig, mixing: nn.Module, dtype: torch.dtype) -> Block:
    return Block(mixing, network.channels, int(network.channels * network.mlp_ratio), eps=EPS, dtype=dtype)


def build_horizon_stream(network: NetworkConfig, dtype: torch.dtype) -> Network:
    """Build the network; linear layers and convolutions are in `dtype`.

    Raises:
        ValueError: the network's shape is impossible.
    """
    return HorizonStream(network, dtype)
