"""From the model's tokens to published tensors: the wanted layers and token groups, in one buffer a layer.

A buffer is written once, in the output's number format, copied to the host as soon as the layer is done, while the
device computes the next ones, and not written again on the host: the arrays that are published are views of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from ..cache.window import CacheLayout
from ..config import ModelConfig, NetworkConfig, OutputConfig, StreamConfig
from ..frames import FeatureTensor, TokenGroup
from ..model.devices import torch_dtype
from ..model.network import LayerOutput


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

    def layout(self, stream: StreamConfig) -> CacheLayout:
        """How a stream of such frames is stored."""
        return CacheLayout.of(stream, self.tokens, self.special)

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
    # Where one tensor of a frame stands in the frame's row of its layer's buffer.
    group: TokenGroup
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class GatheredLayer:
    """What is wanted of a layer, for all frames of a step, on the device.

    Attributes:
        numbers: [F, numbers of a frame], a row a frame, in the output's number format. Of the deepest layer a row has
            one number more: whether all numbers of the frame's tokens there are finite.
        written: recorded once they are written; None on a CPU.
    """

    numbers: Tensor
    written: torch.cuda.Event | None

    @classmethod
    def of(cls, numbers: Tensor) -> "GatheredLayer":
        """Numbers that what was launched before writes."""
        if numbers.device.type != "cuda":
            return cls(numbers, None)
        # External: recorded at each replay of a graph, for streams outside of it.
        written = torch.cuda.Event(external=True)  # type: ignore[no-untyped-call]
        written.record(torch.cuda.current_stream(numbers.device))
        return cls(numbers, written)


@dataclass(frozen=True, slots=True, eq=False)
class HostCopy:
    """Gathered layers on their way to the host.

    Attributes:
        layers: in the host's memory; to be read after `wait`.
        held: on the device, not to be written before.
        done: recorded at the end of the copies; None where there is nothing to wait for.
    """

    layers: tuple[Tensor, ...]
    held: tuple[GatheredLayer, ...]
    done: torch.cuda.Event | None

    @property
    def pending(self) -> bool:
        """Whether `wait` would wait."""
        return self.done is not None and not self.done.query()  # type: ignore[no-untyped-call]

    def wait(self) -> tuple[Tensor, ...]:
        """The layers, once they are there."""
        if self.done is not None:
            self.done.synchronize()
        return self.layers


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


def gather(outputs: Iterable[LayerOutput], shape: TokenShape, config: OutputConfig) -> tuple[GatheredLayer, ...]:
    """Gather the wanted groups of each layer in a buffer on its device, without waiting for it.

    A tensor's last axis is 2C: the frame block's output, then the global block's (without blocks, C). `pooled` is the
    mean over `pool` x `pool` patches; at the right and bottom edges, where fewer are left, over those. A number too
    large for float16 becomes inf.

    Args:
        outputs: the wanted layers' tokens, float32 [F, P, C] each; each is read before the next is asked for.
        shape: what the tokens are.
        config: which layers and groups, and in which number format.
    """
    return tuple(_gathered(output, shape, config) for output in outputs)


def fetch(layers: Sequence[GatheredLayer], copies: torch.cuda.Stream | None) -> HostCopy:
    """Begin to bring layers to the host, each as soon as it is written, which is not waited for.

    Args:
        layers: from `gather`; not to be written before the copy's end.
        copies: the stream that copies; None on a CPU, where nothing is copied.
    """
    if copies is None:
        return HostCopy(tuple(layer.numbers for layer in layers), tuple(layers), None)
    with torch.cuda.stream(copies):
        hosts = [_begin_copy(layer, copies) for layer in layers]
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(copies)
    return HostCopy(tuple(hosts), tuple(layers), done)


def pack(layers: Sequence[Tensor], shape: TokenShape, config: OutputConfig) -> PackedStep:
    """What is published of a step.

    Args:
        layers: from `HostCopy.wait`.
        shape, config: as for `gather`.
    """
    places = _places(shape, config)
    arrays = [_as_numpy(layer) for layer in layers]
    tensors = (
        tuple(
            FeatureTensor(
                name=f"layer{number}/{place.group}",
                layer=number,
                group=place.group,
                data=array[frame, place.start : place.stop].reshape(place.shape),
                is_bfloat16=config.dtype == "bfloat16",
            )
            for number, array in zip(config.layers, arrays, strict=True)
            for place in places
        )
        for frame in range(len(arrays[-1]))
    )
    return PackedStep(tuple(tensors), tuple(bool(row[-1]) for row in arrays[-1]))


def largest_record_bytes(config: ModelConfig) -> int:
    """Bytes of the tensors of the largest record: that of a square picture, the highest there is."""
    network, output = config.network, config.output
    side = config.image_width // network.patch_size
    shape = TokenShape.of(network, (side, side))
    return len(output.layers) * _places(shape, output)[-1].stop * torch_dtype(output.dtype).itemsize


@lru_cache(maxsize=64)
def _places(shape: TokenShape, config: OutputConfig) -> tuple[_Place, ...]:
    places: list[_Place] = []
    start = 0
    for group in config.tokens:
        extent = (*shape.group_shape(group, config.pool), shape.parts * shape.channels)
        stop = start + int(np.prod(extent))
        places.append(_Place(group, extent, start, stop))
        start = stop
    return tuple(places)


def _gathered(output: LayerOutput, shape: TokenShape, config: OutputConfig) -> GatheredLayer:
    places, frames, deepest = _places(shape, config), len(output.frame), output.layer == config.layers[-1]
    width = places[-1].stop
    numbers = output.frame.new_empty((frames, width + deepest), dtype=torch_dtype(config.dtype))
    for place in places:
        target = numbers[:, place.start : place.stop].view(-1, *place.shape[:-1], shape.parts, shape.channels)
        for part, tokens in enumerate(output.parts):
            target[..., part, :] = _group(tokens, place.group, shape, config.pool)
    if deepest:
        numbers[:, width] = output.parts[-1].isfinite().flatten(1).all(1)
    return GatheredLayer.of(numbers)


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


def _begin_copy(layer: GatheredLayer, copies: torch.cuda.Stream) -> Tensor:
    assert layer.written is not None, "it is on a GPU"
    copies.wait_event(layer.written)
    host = torch.empty(layer.numbers.shape, dtype=layer.numbers.dtype, pin_memory=True)
    return host.copy_(layer.numbers, non_blocking=True)


def _as_numpy(host: Tensor) -> npt.NDArray[np.generic]:
    # numpy has no bfloat16: its bits travel as uint16, and any bits but zero mean true in the last column.
    array: npt.NDArray[np.generic] = (host.view(torch.uint16) if host.dtype is torch.bfloat16 else host).numpy()
    return array
