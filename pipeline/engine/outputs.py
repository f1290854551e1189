"""Output heads make the published outputs of each frame. Outputs are gathered on the device and unpacked on the host.

An `OutputHead` declares its outputs for a frame of a given size, and writes their numbers to a buffer on the device.
The engine runs a list of heads in every forward pass, whether plain, fused, or captured as a CUDA graph. Each head's
buffer is copied to the host as soon as the head is done, while the device computes the next layers. The published
arrays are views of that copy, which is never overwritten.

To add an output, say depth:

1. `frames.OutputKind`: add a member for the kind of its numbers.
2. Write a module in this folder with a class that implements `OutputHead`; `token_outputs.TokenHead` is an example.
   Whatever it reads besides tokens (images, its weights) becomes a field of `HeadInputs`, an argument of
   `OutputHeads.gather`, which `model_runner` (plain) and `cuda_graphs` (fused, captured) call.
3. `heads.make_heads`: append the head if the config asks for it. A head that is not in the list costs nothing.
4. `config.ModelConfig.deepest_layer`: include the layers that it reads, since blocks run up to there.
5. `config.OutputConfig` and the daemon's `config/tables.py`: add the key that asks for it.

Nothing else needs a change: host copies, the check for non-finite numbers, the publisher, `extract` and
`check --memory` use the declared outputs. Only if messages are to say more about the output than its name, shape and
number format, `publish/encode.py` must be extended.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..frames import Numbers, Output, OutputTensor
from ..model.devices import torch_dtype
from ..model.network import LayerOutput
from .host_copy import DeviceBuffer
from .token_shape import TokenShape

KEPT_SHAPES = 64
"""Number of token shapes whose buffer layouts are cached."""


@dataclass(frozen=True, slots=True, eq=False)
class HeadInputs:
    """The tokens of one forward pass that a head reads.

    Attributes:
        layers: tokens of the layers that the head reads, in the order of `OutputHead.layers`: float32 [F, P, C] each.
        shape: the token shape of each frame.
    """

    layers: tuple[LayerOutput, ...]
    shape: TokenShape


class OutputHead(Protocol):
    """Makes outputs from the tokens of a forward pass. A head keeps no state from one pass to the next."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Layer pairs that the head reads, ascending, at least one. It runs as soon as the last of them is done."""

    @property
    def checks_finite(self) -> bool:
        """Whether `gather` reports which frames are finite. A head that reads the deepest layer must."""

    def outputs(self, shape: TokenShape) -> tuple[Output, ...]:
        """The head's outputs for a frame with these tokens, in published order; all have the same number format."""

    def gather(self, inputs: HeadInputs, targets: Sequence[Tensor]) -> Tensor | None:
        """Compute the outputs of all frames.

        This method may run while a CUDA graph is captured. So it must not wait for the device, and no shape may depend
        on the values of tokens.

        Args:
            inputs: the tokens to read; they must not be changed, and are valid only during the call.
            targets: where to write each output, [F, *shape] in the output's number format. Numbers too large for
                float16 become inf.

        Returns:
            bool [F], whether all numbers computed for a frame are finite; None if `checks_finite` is false.
        """


@dataclass(frozen=True, slots=True, eq=False)
class StepTensors:
    """The outputs of a forward pass, on the host.

    Attributes:
        tensors: published tensors of each frame.
        finite: whether the numbers of each frame are finite, according to all heads that check.
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
    # A frame's row in a head's buffer: the outputs side by side, and then, if the head checks for finite numbers, one
    # number with the result of the check.
    slots: tuple[_Slot, ...]
    dtype: torch.dtype
    width: int


class OutputHeads:
    """The heads of a model, in the order in which their outputs are published.

    Args:
        heads: at least one head. One of the heads that read the deepest layer must check for non-finite numbers.

    Attributes:
        layers: all layer pairs that at least one head reads, ascending.

    Raises:
        ValueError: no head checks the deepest layer, so non-finite numbers would go unnoticed.
    """

    def __init__(self, heads: Sequence[OutputHead]) -> None:
        self._heads = tuple(heads)
        self._kept_rows: dict[TokenShape, tuple[_Row, ...]] = {}
        self.layers = tuple(sorted({layer for head in heads for layer in head.layers}))
        if not any(head.checks_finite and head.layers[-1] == self.layers[-1] for head in heads):
            raise ValueError(f"no output checks whether the numbers of layer {self.layers[-1]} are finite")

    def outputs(self, shape: TokenShape) -> tuple[Output, ...]:
        """All outputs of a frame with these tokens."""
        return tuple(output for head in self._heads for output in head.outputs(shape))

    def gather(self, layers: Iterable[LayerOutput], shape: TokenShape) -> tuple[DeviceBuffer, ...]:
        """Run each head as soon as the layers that it reads are done. Does not wait for the device.

        Args:
            layers: tokens of the layer pairs in `self.layers`, in this order, each valid until the next is asked for.
            shape: the token shape of each frame.

        Returns:
            one buffer per head.
        """
        rows = self._rows(shape)
        buffers: dict[int, DeviceBuffer] = {}
        kept: dict[int, LayerOutput] = {}
        for layer in layers:
            done = kept | {layer.layer: layer}
            for number, (head, row) in enumerate(zip(self._heads, rows, strict=True)):
                if head.layers[-1] == layer.layer:
                    buffers[number] = _run(head, HeadInputs(tuple(done[index] for index in head.layers), shape), row)
            if any(layer.layer in head.layers[:-1] for head in self._heads):
                kept[layer.layer] = _copied(layer)
        return tuple(buffers[number] for number in range(len(rows)))

    def unpack(self, buffers: Sequence[Tensor], shape: TokenShape) -> StepTensors:
        """Split buffers into the tensors of each frame, which are views of the buffers.

        Args:
            buffers: copies on the host of the buffers that `gather` returned; never to be overwritten.
            shape: the token shape that was passed to `gather`.
        """
        rows = [(row, _as_numpy(buffer)) for row, buffer in zip(self._rows(shape), buffers, strict=True)]
        checks = [array[:, -1] for head, (_, array) in zip(self._heads, rows, strict=True) if head.checks_finite]
        tensors = (
            tuple(
                OutputTensor(slot.output, array[frame, slot.start : slot.stop].reshape(slot.output.shape))
                for row, array in rows
                for slot in row.slots
            )
            for frame in range(len(buffers[0]))
        )
        return StepTensors(tuple(tensors), tuple(map(all, zip(*checks, strict=True))))

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
    finite = head.gather(inputs, [numbers[:, s.start : s.stop].view(-1, *s.output.shape) for s in row.slots])
    if finite is not None:
        numbers[:, -1] = finite
    return DeviceBuffer.of(numbers)


def _row(head: OutputHead, shape: TokenShape) -> _Row:
    slots: list[_Slot] = []
    start = 0
    for output in head.outputs(shape):
        stop = start + math.prod(output.shape)
        slots.append(_Slot(output, start, stop))
        start = stop
    (dtype,) = {slot.output.dtype for slot in slots}
    return _Row(tuple(slots), torch_dtype(dtype), start + head.checks_finite)


def _copied(layer: LayerOutput) -> LayerOutput:
    # A copy for heads that also read a later layer, because fused kernels overwrite these tokens until then.
    return LayerOutput(layer.layer, layer.frame.clone(), None if layer.across is None else layer.across.clone())


def _as_numpy(host: Tensor) -> Numbers:
    # numpy has no bfloat16, so the raw bits are returned as uint16. In a column of checks, any bits but zero mean true.
    array: Numbers = (host.view(torch.uint16) if host.dtype is torch.bfloat16 else host).numpy()
    return array
