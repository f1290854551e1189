"""The pool of recurrent states: each `kda` layer has one row of constant size per stream."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..model.delta_state import DeltaAttentionConfig, DeltaAttentionState, new_state, streaming_config


@dataclass(frozen=True, slots=True)
class StateShape:
    """What determines the memory of a stream's recurrent states.

    Attributes:
        layers: number of `kda` layers that run.
        config: the shape of each layer; unused if there are no layers.
        dtype: dtype of the inputs that the short convolution keeps; the matrices are float32.
        device: where the states are stored.
    """

    layers: int
    config: DeltaAttentionConfig
    dtype: torch.dtype
    device: torch.device

    @property
    def stream_bytes(self) -> int:
        """Total size of a stream's rows in all layers, in bytes."""
        return self.layers * self.config.state_bytes(self.dtype)


NO_STATES = StateShape(0, streaming_config(1, 1), torch.float32, torch.device("cpu"))
"""The shape for a network without `kda` layers."""


class RecurrentStatePool:
    """Owns the rows. The pool doubles when it is full; when its last stream closes, its memory is freed.

    A pool without layers takes no memory.

    Attributes:
        version: increases whenever a layer's rows are reallocated, which changes their addresses.

    Args:
        shape: what determines the memory of a stream.
    """

    def __init__(self, shape: StateShape) -> None:
        self.shape = shape
        self.version = 0
        self._held: set[int] = set()
        self._capacity = 0
        self._layers = self._new_layers(0)

    @property
    def nbytes(self) -> int:
        """Total size of all rows, in bytes."""
        return self._capacity * self.shape.stream_bytes

    @property
    def nbytes_with_another(self) -> int:
        """Total size of all rows if one more stream is opened, in bytes."""
        return self._capacity_for(len(self._held) + 1) * self.shape.stream_bytes

    def layer(self, index: int) -> DeltaAttentionState:
        """The rows of all streams in one layer; valid until the next `allocate`."""
        return self._layers[index]

    def allocate(self) -> int:
        """Allocate one row, at the same index in every layer. Its contents are uninitialised.

        Raises:
            RuntimeError, MemoryError: the device does not have enough memory. The pool is unchanged.
        """
        capacity = self._capacity_for(len(self._held) + 1)
        if capacity > self._capacity:
            grown = self._new_layers(capacity)
            for new, old in zip(grown, self._layers, strict=True):
                for to, source in zip(new.tensors, old.tensors, strict=True):
                    to[: self._capacity] = source
            self._layers, self._capacity = grown, capacity
            self.version += self.shape.layers
        row = next(row for row in range(self._capacity) if row not in self._held)
        self._held.add(row)
        return row

    def free(self, row: int) -> None:
        """Free a row. Idempotent."""
        self._held.discard(row)
        if not self._held and self._capacity:
            self._capacity = 0
            self._layers = self._new_layers(0)
            self.version += self.shape.layers

    def read(self, index: int, row: int) -> tuple[Tensor, ...]:
        """One stream's state in one layer, as views: `recurrent` [HV, K, V] float32, then `convolution` [3, D]."""
        return tuple(tensor[row] for tensor in self._layers[index].tensors)

    def _capacity_for(self, streams: int) -> int:
        capacity = max(1, self._capacity)
        while capacity < streams:
            capacity *= 2
        return capacity

    def _new_layers(self, rows: int) -> list[DeltaAttentionState]:
        shape = self.shape
        with torch.inference_mode(False):  # an inference tensor could not be written outside inference mode
            return [new_state(shape.config, rows, shape.dtype, shape.device) for _ in range(shape.layers)]
