"""What changes from step to step, as one array of numbers that kernels read on the device: their launches stay.

All numbers are int64 and count places from the pool's first; a frame that has none of something has zeros there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .window import MOST_RANGES, CopyOp, Range, padded

_ALIGNED = 2
"""Every part begins at a multiple of 16 bytes: kernels are compiled anew for pointers that do not."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One frame of a step.

    Attributes:
        time: frames committed to its stream before it.
        later: whether it is not its stream's very first frame.
        after_scale: whether it is not one of its stream's first `scale_frames` frames.
        place: first place of its tokens.
        ranges: what it attends to.
        row: its stream's row in the pool of states, or 0.
        written: the row that its `kda` layers write, or -1.
    """

    time: int
    later: bool
    after_scale: bool
    place: int
    ranges: tuple[Range, ...]
    row: int
    written: int


@dataclass(frozen=True, slots=True, eq=False)
class StepTables:
    """The tables of a step of F frames; all are parts of `flat`.

    Attributes:
        flat: int64, all of it, on the host or on the device.
        times, later, after_scale, places, rows, written: int64 [F], see `TableRow`.
        moves: int64 [F, 3], copies before the step: source place, target place, tokens.
        ranges: int64 [F, MOST_RANGES, 2].
    """

    flat: Tensor
    times: Tensor
    later: Tensor
    after_scale: Tensor
    places: Tensor
    rows: Tensor
    written: Tensor
    moves: Tensor
    ranges: Tensor

    @classmethod
    def empty(cls, frames: int, device: torch.device, *, pinned: bool = False) -> "StepTables":
        """Tables of zeros; `pinned` ones are on the host, page-locked."""
        widths = (1, 1, 1, 1, 1, 1, 3, 2 * MOST_RANGES)
        lengths = [frames * width for width in widths]
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + -(-length // _ALIGNED) * _ALIGNED)
        flat = torch.zeros(starts[-1], dtype=torch.int64, device=device, pin_memory=pinned)
        times, later, after_scale, places, rows, written, moves, ranges = (
            flat[start : start + length] for start, length in zip(starts, lengths, strict=False)
        )
        moves, ranges = moves.view(frames, 3), ranges.view(frames, MOST_RANGES, 2)
        return cls(flat, times, later, after_scale, places, rows, written, moves, ranges)

    @property
    def frames(self) -> int:
        """F."""
        return len(self.times)

    def to(self, device: torch.device) -> "StepTables":
        """A copy on a device, which is not waited for."""
        copied = StepTables.empty(self.frames, device)
        copied.flat.copy_(self.flat, non_blocking=True)
        return copied

    def fill(self, rows: Sequence[TableRow], moves: Sequence[CopyOp]) -> None:
        """Write a step, on the host."""
        for target, values in (
            (self.times, [row.time for row in rows]),
            (self.later, [row.later for row in rows]),
            (self.after_scale, [row.after_scale for row in rows]),
            (self.places, [row.place for row in rows]),
            (self.rows, [row.row for row in rows]),
            (self.written, [row.written for row in rows]),
        ):
            target.copy_(torch.tensor(values, dtype=torch.int64))
        self.moves.zero_()
        if moves:
            self.moves[: len(moves)] = torch.tensor([(move.source, move.target, move.tokens) for move in moves])
        self.ranges.copy_(torch.tensor([padded(row.ranges) for row in rows], dtype=torch.int64))
