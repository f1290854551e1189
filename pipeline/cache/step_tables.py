"""The step tables: all numbers that differ from step to step, in one array that kernels read on the device.

So kernel launches are the same in every step, and can be captured. All numbers are int64. Slots are counted from the
pool's first; unused entries are zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .window import MAX_RANGES, CopyOp, Range, padded

_ALIGNED = 2
"""Numbers that each table's start is a multiple of, 16 bytes: kernels are recompiled for pointers that are not."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One frame of a step.

    Attributes:
        time: frames committed to its stream before it.
        later: whether it is not its stream's very first frame.
        after_scale: whether it is not one of its stream's first `scale_frames` frames.
        slot: first slot of its tokens.
        ranges: the slots that it attends to.
        row: its stream's row in the recurrent pool, or 0.
        written: the row that its `kda` layers write, or -1.
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
        copies: int64 [F, 3], copies before the step: source slot, target slot, tokens.
        ranges: int64 [F, MAX_RANGES, 2].
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
        """Tables of zeros; `pinned` puts them into page-locked host memory."""
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
        """F."""
        return len(self.times)

    def to(self, device: torch.device) -> "StepTables":
        """A copy on a device, made without waiting for it."""
        copied = StepTables.empty(self.frames, device)
        copied.flat.copy_(self.flat, non_blocking=True)
        return copied

    def fill(self, rows: Sequence[TableRow], copies: Sequence[CopyOp]) -> None:
        """Fill the tables for a step, on the host."""
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
