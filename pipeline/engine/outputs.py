"""Output heads make the published outputs of each frame. Outputs are gathered on the device and unpacked on the host.

An `OutputHead` declares its outputs for a frame of a given size, and writes their numbers to a buffer on the device.
The engine runs a list of heads in every forward pass, whether plain, fused, or captured as a CUDA graph. Each head's
buffer is copied to the host as soon as the head is done, while the device computes the next layers. The published
arrays are views of that copy, which is never overwritten.

To add an output, say normals:

1. `frames.OutputKind`: add a member for the kind of its numbers.
2. Write a module in this folder with a class that implements `OutputHead`; `pose_outputs.PoseOutput` is an example.
   Whatever it reads besides tokens becomes a field of `HeadInputs`, an argument of `OutputHeads.gather`, which
   `model_runner` (plain) and `cuda_graphs` (fused, captured) call. Its weights are a head of `model.network.Network`.
3. `heads.make_heads`: append the head if `outputs` has the kind. A head that no frame wants costs nothing.
4. `config.ModelConfig.deepest_layer`: include the layers that it reads, since blocks run up to there.

Nothing else needs a change: host copies, the publisher, `extract` and `check --memory` use the declared outputs. Only
if messages are to say more about the output than its name, shape and number format, `publish/encode.py` must be
extended.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..frames import Numbers, Output, OutputKind, OutputTensor
from ..model.camera_head import PoseMemory
from ..model.devices import torch_dtype
from ..model.network import LayerOutput
from .host_copy import DeviceBuffer
from .token_shape import TokenShape

KEPT_SHAPES = 64
"""Number of token shapes whose buffer layouts are cached."""


Wanted = tuple[frozenset[OutputKind], ...]
"""For each frame of a forward pass, the kinds of outputs to compute."""


@dataclass(frozen=True, slots=True, eq=False)
class HeadInputs:
    """What a head reads in one forward pass.

    Attributes:
        layers: tokens of the layers that the head reads, in the order of `OutputHead.layers`: float32 [F, P, C] each.
        shape: the token shape of each frame.
        poses: the pose memory of the frames for which poses are computed, or None if there are none.
    """

    layers: tuple[LayerOutput, ...]
    shape: TokenShape
    poses: PoseMemory | None = None


class OutputHead(Protocol):
    """Makes outputs from the tokens of a forward pass. A head keeps no state from one pass to the next."""

    @property
    def kind(self) -> OutputKind:
        """The kind of the head's outputs. The head runs for the frames for which this kind is wanted."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Layer pairs that the head reads, ascending, at least one. It runs as soon as the last of them is done."""

    def outputs(self, shape: TokenShape) -> tuple[Output, ...]:
        """The head's outputs for a frame with these tokens, in published order; all have the same number format."""

    def gather(self, inputs: HeadInputs, targets: Sequence[Tensor]) -> None:
        """Compute the outputs of all frames.

        This method may run while a CUDA graph is captured. So it must not wait for the device, and no shape may depend
        on the values of tokens.

        Args:
            inputs: the tokens to read; they must not be changed, and are valid only during the call.
            targets: where to write each output, [F, *shape] in the output's number format. Numbers too large for
                float16 become inf.
        """


@dataclass(frozen=True, slots=True, eq=False)
class StepTensors:
    """The outputs of a forward pass, on the host.

    Attributes:
        tensors: the wanted tensors of each frame.
        finite: whether all tokens of the deepest layer are finite, for each frame.
    """

    tensors: tuple[tuple[OutputTensor, ...], ...]
    finite: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class _Slot:
    # The position of one output in a row of its head's buffer.
    output: Output
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Row:
    # A frame's row in a head's buffer: the outputs side by side.
    slots: tuple[_Slot, ...]
    dtype: torch.dtype
    width: int


class OutputHeads:
    """The heads of a model, in the order in which their outputs are published.

    Besides the outputs, a forward pass returns which frames are finite. Only the deepest layer is checked, because
    non-finite numbers of earlier layers spread to it.

    Args:
        heads: at least one head.

    Attributes:
        layers: all layer pairs that at least one head reads, ascending.
    """

    def __init__(self, heads: Sequence[OutputHead]) -> None:
        self._heads = tuple(heads)
        self._kept_rows: dict[TokenShape, tuple[_Row, ...]] = {}
        self.layers = tuple(sorted({layer for head in heads for layer in head.layers}))

    def outputs(self, shape: TokenShape) -> tuple[Output, ...]:
        """All outputs of a frame with these tokens."""
        return tuple(output for head in self._heads for output in head.outputs(shape))

    def gather(
        self,
        layers: Iterable[LayerOutput],
        shape: TokenShape,
        wanted: Wanted,
        poses: PoseMemory | None = None,
    ) -> tuple[DeviceBuffer, ...]:
        """Run each head as soon as the layers that it reads are done. Does not wait for the device.

        Args:
            layers: tokens of the layer pairs in `self.layers`, in this order, each valid until the next is asked for.
            shape: the token shape of each frame.
            wanted: what to compute for each frame.
            poses: the pose memory of the frames that want poses, or None if none does.

        Returns:
            one buffer per head that runs, then one that says which frames are finite.
        """
        runs = self._runs(shape, wanted)
        buffers: dict[int, DeviceBuffer] = {}
        kept: dict[int, LayerOutput] = {}
        finite: DeviceBuffer | None = None
        for layer in layers:
            done = kept | {layer.layer: layer}
            for number, (head, row, frames) in enumerate(runs):
                if head.layers[-1] == layer.layer:
                    read = tuple(_chosen(done[index], frames, len(wanted)) for index in head.layers)
                    buffers[number] = _run(head, HeadInputs(read, shape, poses), row)
            if layer.layer == self.layers[-1]:
                finite = DeviceBuffer.of(layer.parts[-1].isfinite().flatten(1).all(1))
            elif any(layer.layer in head.layers[:-1] for head, _, _ in runs):
                kept[layer.layer] = _copied(layer)
        assert finite is not None, "all layers up to the deepest were given"
        return *(buffers[number] for number in range(len(runs))), finite

    def unpack(self, buffers: Sequence[Tensor], shape: TokenShape, wanted: Wanted) -> StepTensors:
        """Split buffers into the tensors of each frame, which are views of the buffers.

        Args:
            buffers: copies on the host of the buffers that `gather` returned; never to be overwritten.
            shape, wanted: as passed to `gather`.
        """
        tensors: list[list[OutputTensor]] = [[] for _ in wanted]
        *arrays, finite = map(_as_numpy, buffers)
        for (_, row, frames), array in zip(self._runs(shape, wanted), arrays, strict=True):
            for index, frame in enumerate(frames):
                tensors[frame] += (
                    OutputTensor(slot.output, array[index, slot.start : slot.stop].reshape(slot.output.shape))
                    for slot in row.slots
                )
        return StepTensors(tuple(map(tuple, tensors)), tuple(map(bool, finite)))

    def _runs(self, shape: TokenShape, wanted: Wanted) -> list[tuple[OutputHead, _Row, tuple[int, ...]]]:
        # The heads that run, their rows, and the numbers of the frames for which they run.
        runs = []
        for head, row in zip(self._heads, self._rows(shape), strict=True):
            frames = tuple(number for number, kinds in enumerate(wanted) if head.kind in kinds)
            if frames:
                runs.append((head, row, frames))
        return runs

    def _rows(self, shape: TokenShape) -> tuple[_Row, ...]:
        rows = self._kept_rows.get(shape)
        if rows is None:
            while len(self._kept_rows) >= KEPT_SHAPES:
                self._kept_rows.pop(next(iter(self._kept_rows)))
            rows = self._kept_rows[shape] = tuple(_row(head, shape) for head in self._heads)
        return rows


def _run(head: OutputHead, inputs: HeadInputs, row: _Row) -> DeviceBuffer:
    tokens = inputs.layers[-1].frame
    numbers = tokens.new_empty((len(tokens), row.width), dtype=row.dtype)
    head.gather(inputs, [numbers[:, s.start : s.stop].view(-1, *s.output.shape) for s in row.slots])
    return DeviceBuffer.of(numbers)


def _chosen(layer: LayerOutput, frames: tuple[int, ...], count: int) -> LayerOutput:
    # The tokens of these frames; `frames` are ascending.
    if len(frames) == count:
        return layer
    if frames == tuple(range(frames[0], frames[-1] + 1)):
        return layer.each(lambda tokens: tokens[frames[0] : frames[-1] + 1])
    return layer.each(lambda tokens: torch.stack([tokens[frame] for frame in frames]))


def _row(head: OutputHead, shape: TokenShape) -> _Row:
    slots: list[_Slot] = []
    start = 0
    for output in head.outputs(shape):
        stop = start + math.prod(output.shape)
        slots.append(_Slot(output, start, stop))
        start = stop
    (dtype,) = {slot.output.dtype for slot in slots}
    return _Row(tuple(slots), torch_dtype(dtype), start)


def _copied(layer: LayerOutput) -> LayerOutput:
    # A copy for heads that also read a later layer, because fused kernels overwrite these tokens until then.
    return layer.each(torch.clone)


def _as_numpy(host: Tensor) -> Numbers:
    # numpy has no bfloat16, so the raw bits are returned as uint16.
    array: Numbers = (host.view(torch.uint16) if host.dtype is torch.bfloat16 else host).numpy()
    return array
