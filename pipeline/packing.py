"""From the model's tokens to published tensors: the wanted layers and token groups, in one buffer a step.

The buffer is written once, in the output's number format, copied to the host once, and never written again: the arrays
that are published are views of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from .cache.ledger import Layout
from .config import ModelConfig, NetworkConfig, OutputConfig, StreamConfig
from .frames import FeatureTensor, TokenGroup
from .model.aggregator import LayerOutput
from .model.devices import torch_dtype


@dataclass(frozen=True, slots=True)
class TokenShape:
    """What a frame's tokens are: S special ones (camera, registers, scale), then a grid of patches; C channels each.

    `blocks` is whether they went through blocks: if not, there are no special tokens, and one part is published, not
    two.
    """

    registers: int
    grid: tuple[int, int]
    channels: int
    blocks: bool = True

    @classmethod
    def of(cls, network: NetworkConfig, grid: tuple[int, int]) -> "TokenShape":
        """The tokens that a network makes of a picture with this grid of patches."""
        return cls(network.register_tokens, grid, network.channels, network.depth > 0)

    @property
    def special(self) -> int:
        """S."""
        return self.registers + 2 if self.blocks else 0

    @property
    def parts(self) -> int:
        """Tensors of C channels that are published side by side."""
        return 2 if self.blocks else 1

    @property
    def tokens(self) -> int:
        """P."""
        return self.special + self.grid[0] * self.grid[1]

    def layout(self, stream: StreamConfig) -> Layout:
        """How a stream of such frames is stored."""
        return Layout.of(stream, self.tokens, self.special)

    def group_shape(self, group: TokenGroup, pool: int) -> tuple[int, ...]:
        """The shape of a published group, its channels left out."""
        match group:
            case TokenGroup.CAMERA | TokenGroup.SCALE:
                return (1,)
            case TokenGroup.REGISTERS:
                return (self.registers,)
            case TokenGroup.PATCH:
                return self.grid
            case TokenGroup.POOLED:
                return (-(-self.grid[0] // pool), -(-self.grid[1] // pool))


@dataclass(frozen=True, slots=True)
class _Place:
    # Where one tensor of a frame stands in the frame's row of the buffer.
    layer: int
    group: TokenGroup
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class PackedStep:
    """What a step gave, on the host.

    Attributes:
        tensors: published tensors of each frame.
        finite: whether all numbers of the deepest layer of each frame are finite (a non-finite number anywhere before
            would have reached it).
    """

    tensors: tuple[tuple[FeatureTensor, ...], ...]
    finite: tuple[bool, ...]


def gather(outputs: Sequence[LayerOutput], shape: TokenShape, config: OutputConfig) -> Tensor:
    """Gather the wanted groups of a step in one buffer on its device, without waiting for it.

    A tensor's last axis is 2C: the frame block's output, then the global block's (without blocks, C). `pooled` is the
    mean over `pool` x `pool` patches; at the right and bottom edges, where fewer are left, over those. A number too
    large for float16 becomes inf.

    Args:
        outputs: the wanted layers' tokens, float32 [F, P, C] each.
        shape: what the tokens are.
        config: which groups, and in which number format.

    Returns:
        [F, numbers of a frame + 1], a row a frame, in the output's number format. The last number of a row is whether
        all numbers of the frame's deepest layer are finite.
    """
    places = _places([output.layer for output in outputs], shape, config)
    frames, width = outputs[0].frame.shape[0], places[-1].stop
    buffer = outputs[0].frame.new_empty((frames, width + 1), dtype=torch_dtype(config.dtype))
    per_layer = len(config.tokens)
    for index, place in enumerate(places):
        _fill(buffer, place, outputs[index // per_layer], shape, config.pool)
    buffer[:, width] = outputs[-1].parts[-1].isfinite().flatten(1).all(1)
    return buffer


def pack(buffer: Tensor, shape: TokenShape, config: OutputConfig) -> PackedStep:
    """Bring what was gathered to the host: the step's only copy from the device, for which this waits.

    Args:
        buffer: from `gather`, with the same shape and config.
        shape, config: see there.
    """
    places = _places(config.layers, shape, config)
    rows = _as_numpy(_to_host(buffer))
    views = tuple(_views(row, places, config) for row in rows)
    return PackedStep(views, tuple(bool(row[-1]) for row in rows))


def largest_record_bytes(config: ModelConfig) -> int:
    """Bytes of the tensors of the largest record: that of a square picture, the highest there is."""
    network, output = config.network, config.output
    side = config.image_width // network.patch_size
    shape = TokenShape.of(network, (side, side))
    return _places(output.layers, shape, output)[-1].stop * torch_dtype(output.dtype).itemsize


def _places(layers: Sequence[int], shape: TokenShape, config: OutputConfig) -> list[_Place]:
    places: list[_Place] = []
    start = 0
    for layer in layers:
        for group in config.tokens:
            extent = (*shape.group_shape(group, config.pool), shape.parts * shape.channels)
            stop = start + int(np.prod(extent))
            places.append(_Place(layer, group, extent, start, stop))
            start = stop
    return places


def _fill(buffer: Tensor, place: _Place, output: LayerOutput, shape: TokenShape, pool: int) -> None:
    target = buffer[:, place.start : place.stop].view(-1, *place.shape[:-1], shape.parts, shape.channels)
    for part, tokens in enumerate(output.parts):
        target[..., part, :] = _group(tokens, place.group, shape, pool)


def _group(tokens: Tensor, group: TokenGroup, shape: TokenShape, pool: int) -> Tensor:
    match group:
        case TokenGroup.CAMERA:
            return tokens[:, :1]
        case TokenGroup.REGISTERS:
            return tokens[:, 1 : shape.special - 1]
        case TokenGroup.SCALE:
            return tokens[:, shape.special - 1 : shape.special]
    patches = tokens[:, shape.special :].view(-1, *shape.grid, shape.channels)
    if group is TokenGroup.PATCH:
        return patches
    pooled = functional.avg_pool2d(patches.permute(0, 3, 1, 2), pool, ceil_mode=True)
    return pooled.permute(0, 2, 3, 1)


def _to_host(buffer: Tensor) -> Tensor:
    if buffer.device.type == "cpu":
        return buffer
    host = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)
    host.copy_(buffer, non_blocking=True)
    torch.cuda.current_stream(buffer.device).synchronize()
    return host


def _as_numpy(host: Tensor) -> npt.NDArray[np.generic]:
    # numpy has no bfloat16: its bits travel as uint16, and any bits but zero mean true in the last column.
    array: npt.NDArray[np.generic] = (host.view(torch.uint16) if host.dtype is torch.bfloat16 else host).numpy()
    return array


def _views(row: npt.NDArray[np.generic], places: list[_Place], config: OutputConfig) -> tuple[FeatureTensor, ...]:
    return tuple(
        FeatureTensor(
            name=f"layer{place.layer}/{place.group}",
            layer=place.layer,
            group=place.group,
            data=row[place.start : place.stop].reshape(place.shape),
            is_bfloat16=config.dtype == "bfloat16",
        )
        for place in places
    )
