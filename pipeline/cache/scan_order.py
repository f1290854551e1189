"""How the frames of a step go through `kda` blocks: in which order, from which stream's state, and what is written.

The frames that stay in memory are scanned one after the other, as one sequence a stream. A frame that does not stay
reads the state that its predecessors left, so the frames after it wait for nothing of it; but the keyframe after it
must not be scanned before. So a step is a few waves, each one call of a layer for all streams: keyframes in a row, then
the frames in a row that only read, and so on. A step of one frame a stream is one wave.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, zip_longest

import torch
from torch import Tensor

from ..model.delta_state import Sequences
from .window import StepPlan

SKIP = -1
"""The row of a sequence that writes nothing."""


@dataclass(frozen=True, slots=True)
class StreamScan:
    """One stream's part in a step.

    Attributes:
        plan: what the step does to its memory.
        row: its row in the pool of states.
        reads_only: whether the state is left as it was whatever the plan says.
    """

    plan: StepPlan
    row: int
    reads_only: bool = False


@dataclass(frozen=True, slots=True)
class Wave:
    """Sequences that are scanned in one call.

    Attributes:
        frames: numbers of the step's frames, sequence by sequence.
        lengths: frames of each sequence.
        rows: the row that each reads.
        written: the row that each writes, or `SKIP`.
    """

    frames: tuple[int, ...]
    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    written: tuple[int, ...]

    @property
    def reads_only(self) -> bool:
        """Whether nothing is written."""
        return all(row == SKIP for row in self.written)


@dataclass(frozen=True, slots=True, eq=False)
class WaveTensors:
    """A wave on its device, for all layers of a step.

    Attributes:
        frames: int64, numbers of the step's frames, sequence by sequence.
        sequences: how its tokens are cut, and which rows are read and written.
        reads_only: whether nothing is written.
    """

    frames: Tensor
    sequences: Sequences
    reads_only: bool

    @classmethod
    def of(cls, wave: Wave, frame_tokens: int, device: torch.device) -> "WaveTensors":
        """For frames of so many tokens; copied to the device without waiting for it."""
        cuts = torch.tensor(tuple(accumulate((length * frame_tokens for length in wave.lengths), initial=0)))
        rows = torch.tensor((wave.rows, wave.written), dtype=torch.int32).to(device, non_blocking=True)
        sequences = Sequences(
            cu_seqlens=cuts.to(device, non_blocking=True),
            cu_seqlens_cpu=cuts,
            rows=rows[0],
            written_rows=None if wave.reads_only else rows[1],
        )
        return cls(torch.tensor(wave.frames).to(device, non_blocking=True), sequences, wave.reads_only)


@dataclass(frozen=True, slots=True)
class _Part:
    # Some frames of one stream in one wave.
    frames: tuple[int, ...]
    row: int
    writes: bool


def waves(scans: Sequence[StreamScan]) -> tuple[Wave, ...]:
    """The waves of a step. Its frames are those of the streams, one after the other."""
    starts = accumulate((len(scan.plan.frames) for scan in scans), initial=0)
    parts = [_parts(scan, start) for scan, start in zip(scans, starts, strict=False)]
    return tuple(_wave([part for part in together if part is not None]) for together in zip_longest(*parts))


def _parts(scan: StreamScan, start: int) -> list[_Part]:
    numbered = enumerate(scan.plan.frames, start)
    groups = groupby(numbered, key=lambda pair: pair[1].keyframe)
    return [
        _Part(tuple(number for number, _ in frames), scan.row, keyframe and not scan.reads_only)
        for keyframe, frames in groups
    ]


def _wave(parts: Sequence[_Part]) -> Wave:
    sequences = [
        (frames, part)
        for part in parts
        for frames in ([part.frames] if part.writes else [(number,) for number in part.frames])
    ]
    return Wave(
        frames=tuple(number for frames, _ in sequences for number in frames),
        lengths=tuple(len(frames) for frames, _ in sequences),
        rows=tuple(part.row for _, part in sequences),
        written=tuple(part.row if part.writes else SKIP for _, part in sequences),
    )
