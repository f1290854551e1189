"""The order in which `kda` layers process the frames of a step, and which state each frame reads and writes.

Consecutive keyframes of a stream are scanned as one sequence. A non-keyframe reads the state that its predecessors left
and writes none, so later frames do not depend on it. But it must be scanned before the keyframe that follows it. So a
step is divided into a few waves, in each of which a layer is called once for all streams: consecutive keyframes, then
consecutive non-keyframes, and so on. A step with one frame per stream is one wave.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, zip_longest

import torch
from torch import Tensor

from ..model.delta_state import Sequences
from .window import StepPlan

SKIP = -1
"""Stands for a row where a sequence writes no state."""


@dataclass(frozen=True, slots=True)
class StreamScan:
    """The frames of one stream in a step.

    Attributes:
        plan: the stream's plan.
        row: the stream's row in the recurrent pool.
        reads_only: whether no frame writes the state, not even a keyframe.
    """

    plan: StepPlan
    row: int
    reads_only: bool = False


@dataclass(frozen=True, slots=True)
class Wave:
    """Sequences that are scanned in one call.

    Attributes:
        frames: indices of the frames within the step, sequence by sequence.
        lengths: number of frames of each sequence.
        rows: the row that each sequence reads.
        written: the row that each sequence writes, or `SKIP`.
    """

    frames: tuple[int, ...]
    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    written: tuple[int, ...]

    @property
    def reads_only(self) -> bool:
        """Whether no sequence writes."""
        return all(row == SKIP for row in self.written)


@dataclass(frozen=True, slots=True, eq=False)
class WaveTensors:
    """A wave on the device, for all layers of a step.

    Attributes:
        frames: int64, indices of the frames within the step, sequence by sequence.
        sequences: how the tokens are divided into sequences, and which rows the sequences read and write.
        reads_only: whether no sequence writes.
    """

    frames: Tensor
    sequences: Sequences
    reads_only: bool

    @classmethod
    def of(cls, wave: Wave, frame_tokens: int, device: torch.device) -> "WaveTensors":
        """Copy a wave to the device, without waiting for the copy; each frame has `frame_tokens` tokens."""
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
class _FrameRun:
    # Consecutive frames of one stream that go into one wave.
    frames: tuple[int, ...]
    row: int
    writes: bool


def waves(scans: Sequence[StreamScan]) -> tuple[Wave, ...]:
    """Divide a step into waves. The step's frames are those of the first stream, then those of the second, etc."""
    starts = accumulate((len(scan.plan.frames) for scan in scans), initial=0)
    runs = [_frame_runs(scan, start) for scan, start in zip(scans, starts, strict=False)]
    return tuple(_wave([run for run in together if run is not None]) for together in zip_longest(*runs))


def _frame_runs(scan: StreamScan, start: int) -> list[_FrameRun]:
    numbered = enumerate(scan.plan.frames, start)
    groups = groupby(numbered, key=lambda pair: pair[1].keyframe)
    return [
        _FrameRun(tuple(number for number, _ in frames), scan.row, keyframe and not scan.reads_only)
        for keyframe, frames in groups
    ]


def _wave(runs: Sequence[_FrameRun]) -> Wave:
    sequences = [
        (frames, run)
        for run in runs
        for frames in ([run.frames] if run.writes else [(number,) for number in run.frames])
    ]
    return Wave(
        frames=tuple(number for frames, _ in sequences for number in frames),
        lengths=tuple(len(frames) for frames, _ in sequences),
        rows=tuple(run.row for _, run in sequences),
        written=tuple(run.row if run.writes else SKIP for _, run in sequences),
    )
