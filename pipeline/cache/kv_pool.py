"""The KV cache pool: one buffer of keys and values per attention layer, which all streams share.

The buffers are as large as the open streams need. If a new stream fits into no gap, the buffers are reallocated layer
by layer, so growing needs extra memory for one layer only. The other streams' tokens are copied and packed, which
leaves no gaps. So no memory is reserved for images larger than the cameras deliver, and none is lost to fragmentation.
The pool also owns the recurrent states of `kda` layers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import AdmissionError
from ..model.devices import is_device_failure
from .allocator import Span, SpanAllocator
from .recurrent_pool import NO_STATES, RecurrentStatePool, StateShape
from .window import CacheLayout


@dataclass(frozen=True, slots=True)
class PoolShape:
    """What determines each stream's memory: a fixed amount per slot, plus a constant amount for recurrent states.

    Attributes:
        layers: L, the number of attention layers with keys and values.
        heads, head_dim: H and D of the keys and values.
        dtype, device: dtype and device of the storage.
        states: the shape of the recurrent states of `kda` layers.
    """

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    states: StateShape = NO_STATES

    @property
    def stream_bytes(self) -> int:
        """Size of a stream's recurrent states in bytes, which are stored in addition to its slots."""
        return self.states.stream_bytes

    def bytes_of(self, layout: CacheLayout) -> int:
        """Size of a stream with this layout, in bytes."""
        return layout.pages * layout.frame_tokens * self.token_bytes + self.stream_bytes

    @property
    def token_bytes(self) -> int:
        """Size of one slot in bytes: the keys and values of all layers."""
        return self.layers * 2 * self.heads * self.head_dim * self.dtype.itemsize

    def describe(self, layout: CacheLayout) -> str:
        """The memory that a stream needs, as text, with the factors from which it is calculated."""
        tokens = (
            f"{layout.frame_pages} frames of {layout.frame_tokens} tokens and "
            f"{layout.history_entries} x {layout.entry_tokens} tokens of history, "
            f"each {_layers(self.layers, '')} x 2 x {self.heads} heads x {self.head_dim} x {self.dtype.itemsize} bytes"
        )
        count = self.states.layers
        states = f", and {gib(self.stream_bytes)} for {_layers(count, 'kda ')}" if count else ""
        return f"{gib(self.bytes_of(layout))} for {tokens}{states}"


def _layers(count: int, kind: str) -> str:
    return f"{count} {kind}layer{'s' * (count != 1)}"


def gib(count: int) -> str:
    """A number of bytes as text: `1.50 GiB`, or `12.3 MiB` below 1 GiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


class KVCachePool:
    """Owns the buffers. Each stream gets a number, called its owner; numbers are never reused.

    Attributes:
        shape: what determines each stream's memory.
        states: the recurrent states of `kda` layers.

    Args:
        shape: what determines each stream's memory.
        limit_bytes: maximum total size of the buffers; None for as much as the device has.
        beside: another pool. The size of each of the two counts towards the other's limit.
    """

    def __init__(self, shape: PoolShape, limit_bytes: int | None = None, beside: "KVCachePool | None" = None) -> None:
        self.shape = shape
        self._limit_bytes = limit_bytes
        self._beside = beside
        if beside is not None:
            beside._beside = self
        self._spans = SpanAllocator()
        self._buffers = [self._empty(0) for _ in range(shape.layers)]
        self.states = RecurrentStatePool(shape.states)
        self._rows: dict[int, int] = {}
        self._next_owner = 0
        self._replaced = 0

    @property
    def nbytes(self) -> int:
        """Total size of the buffers, in bytes."""
        return self._spans.capacity * self.shape.token_bytes + self.states.nbytes

    @property
    def version(self) -> int:
        """A number that increases whenever a buffer is reallocated, which changes addresses."""
        return self._replaced + self.states.version

    def row(self, owner: int) -> int:
        """A stream's row in `states`.

        Raises:
            KeyError: there is no such stream.
        """
        return self._rows[owner]

    @property
    def spans(self) -> SpanAllocator:
        """The spans of all streams."""
        return self._spans

    def layer(self, index: int) -> Tensor:
        """A layer's keys and values [2, T, H, D] in all T slots of the pool; valid until the next `allocate`."""
        return self._buffers[index]

    def pages(self, index: int, page_tokens: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values as pages [T // page_tokens, page_tokens, H, D], views of the buffer."""
        keys, values = self._buffers[index].unbind(0)
        count = keys.shape[0] // page_tokens
        shape = (count, page_tokens, *keys.shape[1:])
        return keys[: count * page_tokens].view(shape), values[: count * page_tokens].view(shape)

    def can_allocate(self, layout: CacheLayout) -> bool:
        """Whether the limit leaves room for another stream."""
        return self._refusal(layout) is None

    def allocate(self, layout: CacheLayout) -> int:
        """Allocate slots for a stream. Their contents are uninitialised. The spans of other streams may move.

        Returns:
            the stream's number.

        Raises:
            AdmissionError: there is not enough memory. Nothing has changed.
        """
        reason = self._refusal(layout)
        if reason is not None:
            raise AdmissionError(reason)
        try:
            return self.allocate_pages(layout.frame_tokens, layout.pages)
        except (RuntimeError, MemoryError) as error:
            if is_device_failure(error):
                raise
            raise AdmissionError(f"{self._no_room(layout)}, and the device has no memory left: {error}") from error

    def allocate_pages(self, page_tokens: int, pages: int) -> int:
        """Allocate pages for a stream, without regard to the limit.

        Raises:
            RuntimeError, MemoryError: the device has not enough memory. Nothing has changed.
        """
        owner = self._next_owner
        self._rows[owner] = self.states.allocate()
        try:
            if self._spans.can_allocate(page_tokens, pages):
                self._spans = self._spans.allocate(owner, page_tokens, pages)
            else:
                self._rebuild(self._spans.packed(owner, page_tokens, pages))
        except BaseException:
            self._free_row(owner)
            raise
        self._next_owner += 1
        return owner

    def free(self, owner: int) -> None:
        """Free a stream's slots; the last stream frees the buffers. Idempotent."""
        self._free_row(owner)
        self._spans = self._spans.free(owner)
        if not self._spans.held and self._spans.capacity:
            self._spans = SpanAllocator()
            self._buffers = [self._empty(0) for _ in self._buffers]
            self._replaced += 1
            self._trim()

    def span(self, owner: int) -> Span:
        """The slots of a stream.

        Raises:
            KeyError: there is no such stream.
        """
        return self._spans.of(owner)

    def check_integrity(self) -> None:
        """Check that the spans are consistent and that the buffers have the allocator's size.

        Raises:
            ValueError: one of these conditions does not hold.
        """
        self._spans.check_integrity()
        sizes = {buffer.shape[1] for buffer in self._buffers}
        if sizes - {self._spans.capacity}:
            raise ValueError(f"the buffers have {sorted(sizes)} slots, but the allocator has {self._spans.capacity}")

    def _free_row(self, owner: int) -> None:
        if owner in self._rows:
            self.states.free(self._rows.pop(owner))

    def _empty(self, slots: int) -> Tensor:
        shape = self.shape
        with torch.inference_mode(False):  # an inference tensor could not be written outside inference mode
            return torch.empty((2, slots, shape.heads, shape.head_dim), dtype=shape.dtype, device=shape.device)

    def _refusal(self, layout: CacheLayout) -> str | None:
        page_tokens, pages = layout.frame_tokens, layout.pages
        if self._limit_bytes is None:
            return None
        fits = self._spans.can_allocate(page_tokens, pages)
        spans = self._spans if fits else self._spans.packed(self._next_owner, page_tokens, pages)
        needed = spans.capacity * self.shape.token_bytes + self.states.nbytes_with_another
        if self._beside is not None:
            needed += self._beside.nbytes
        return None if needed <= self._limit_bytes else self._no_room(layout)

    def _no_room(self, layout: CacheLayout) -> str:
        used = self._spans.used * self.shape.token_bytes + len(self._spans.held) * self.shape.stream_bytes
        limit = "" if self._limit_bytes is None else f", the limit is {gib(self._limit_bytes)}"
        return (
            f"no memory for another stream: it needs {self.shape.describe(layout)}; "
            f"{len(self._spans.held)} streams use {gib(used)}{limit}"
        )

    def _rebuild(self, spans: SpanAllocator) -> None:
        old, done = self._spans, 0
        try:
            for index in range(self.shape.layers):
                self._move(index, old, spans)
                done += 1
        except (RuntimeError, MemoryError):
            # There is enough memory to undo the change: a layer's old buffer is smaller than its new one.
            for index in reversed(range(done)):
                self._move(index, spans, old)
            raise
        self._spans = spans
        self._trim()

    def _trim(self) -> None:
        # PyTorch caches freed memory. No old buffer is large enough to be reused for a new one, so all old buffers
        # would stay allocated.
        if self.shape.device.type == "cuda":
            torch.cuda.empty_cache()

    def _move(self, index: int, before: SpanAllocator, after: SpanAllocator) -> None:
        source, target = self._buffers[index], self._empty(after.capacity)
        moving = {span.owner: span for span in after.held}
        for span in before.held:
            if span.owner in moving:
                to = moving[span.owner]
                target[:, to.start : to.stop] = source[:, span.start : span.stop]
        self._buffers[index] = target
        self._replaced += 1
