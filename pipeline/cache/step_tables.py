"""The step tables: all numbers that differ from step to step, in one array that kernels read on the device.

So the kernel launches are the same in every step, and can be captured in a CUDA graph. All numbers are int64. Slots are
counted from the pool's first slot; unused entries are zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .window import MAX_RANGES, CopyOp, Range, padded

_ALIGNED = 2
"""Each table starts at a multiple of this many numbers (16 bytes): a kernel is recompiled for less aligned pointers."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One frame of a step.

    Attributes:
        time: number of frames committed to the stream before this frame.
        later: whether the frame is not the very first of its stream.
        after_scale: whether the frame is not one of the first `scale_frames` frames of its stream.
        slot: first slot of the frame's tokens.
        ranges: the slots that the frame attends to.
        row: the stream's row in the recurrent pool, or 0 if the stream has none.
        written: the row to which the `kda` layers write the state after this frame, or -1 if they write none.
    """

    time: int
    later: bool
    after_scale: bool
    slot: int
    ranges: tuple[Range, ...]
    row: int
    written: int


@dataclass(frozen=True, slots=True, eq=False)
class StepTables:
    """The tables of a step of F frames, all views of `flat`.

    Attributes:
        flat: int64, all tables, on the host or on the device.
        times, later, after_scale, slots, rows, written: int64 [F], see `TableRow`.
        copies: int64 [F, 3], copies before the step: source slot, target slot, number of tokens.
        ranges: int64 [F, MAX_RANGES, 2], see `TableRow`.
    """

    flat: Tensor
    times: Tensor
    later: Tensor
    after_scale: Tensor
    slots: Tensor
    rows: Tensor
    written: Tensor
    copies: Tensor
    ranges: Tensor

    @classmethod
    def empty(cls, frames: int, device: torch.device, *, pinned: bool = False) -> "StepTables":
        """Make tables of zeros; `pinned` allocates them in page-locked host memory."""
        widths = (1, 1, 1, 1, 1, 1, 3, 2 * MAX_RANGES)
        lengths = [frames * width for width in widths]
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + -(-length // _ALIGNED) * _ALIGNED)
        flat = torch.zeros(starts[-1], dtype=torch.int64, device=device, pin_memory=pinned)
        times, later, after_scale, slots, rows, written, copies, ranges = (
            flat[start : start + length] for start, length in zip(starts, lengths, strict=False)
        )
        copies, ranges = copies.view(frames, 3), ranges.view(frames, MAX_RANGES, 2)
        return cls(flat, times, later, after_scale, slots, rows, written, copies, ranges)

    @property
    def frames(self) -> int:
        """F, the number of frames."""
        return len(self.times)

    def to(self, device: torch.device) -> "StepTables":
        """Start a copy to a device and return it, without waiting until the copy is done."""
        copied = StepTables.empty(self.frames, device)
        copied.flat.copy_(self.flat, non_blocking=True)
        return copied

    def fill(self, rows: Sequence[TableRow], copies: Sequence[CopyOp]) -> None:
        """Fill the tables for a step. Only for tables on the host."""
        for target, values in (
            (self.times, [row.time for row in rows]),
            (self.later, [row.later for row in rows]),
            (self.after_scale, [row.after_scale for row in rows]),
            (self.slots, [row.slot for row in rows]),
            (self.rows, [row.row for row in rows]),
            (self.written, [row.written for row in rows]),
        ):
            target.copy_(torch.tensor(values, dtype=torch.int64))
        self.copies.zero_()
        if copies:
            self.copies[: len(copies)] = torch.tensor([(copy.source, copy.target, copy.tokens) for copy in copies])
        self.ranges.copy_(torch.tensor([padded(row.ranges) for row in rows], dtype=torch.int64))
