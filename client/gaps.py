"""Gap detection: which frames or records a subscriber missed and why, derived per camera from header counters."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from .wire import EndHeader, RecordFields


class GapKind(StrEnum):
    """The reason why records are missing or counters restart."""

    SOURCE_DROP = "source_drop"
    """Frames were captured but never published: they were dropped for newer ones, were undecodable, or failed in the
    model."""
    WIRE_LOSS = "wire_loss"
    """Records were published but never arrived: this subscriber was too slow or disconnected."""
    RESTART = "restart"
    """The service restarted; how many records were missed in between is unknown."""
    RECONNECT = "reconnect"
    """The service reconnected to the source; `seq` and `source_seq` restart at 0."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap of one kind before a record.

    Attributes:
        kind: the reason.
        camera: the camera's name.
        count: number of missing frames or records, or of restarts or reconnects.
    """

    kind: GapKind
    camera: str
    count: int

    def __str__(self) -> str:
        return f"{self.kind} {self.count} ({self.camera})"


MAX_CAMERAS = 4096
"""Maximum number of cameras that a subscriber tracks, in about 2 MB; beyond it, the least recently seen one is evicted.
A service runs at most 1024 cameras."""


@dataclass(frozen=True, slots=True)
class _Position:
    instance: str
    stream_epoch: int
    seq: int
    source_seq: int


class GapTracker:
    """Compares each record with its camera's previous one.

    A camera's first record has no gap: joining late is not a loss.
    """

    def __init__(self) -> None:
        self._last: dict[str, _Position] = {}

    def before_record(self, header: RecordFields) -> tuple[Gap, ...]:
        """The gaps between the camera's last record and this one; none for a duplicate or an older record."""
        here = _Position(header.instance, header.stream_epoch, header.seq, header.source_seq)
        last = self._last.get(header.camera)
        if last is not None and _is_past(here, last):
            return ()
        self._remember(header.camera, here)
        if last is None:
            return ()
        jump = _jump(header.camera, last, here)
        start = _Position(here.instance, here.stream_epoch, -1, -1) if jump else last
        lost = here.seq - start.seq - 1
        dropped = here.source_seq - start.source_seq - 1 - lost
        return (
            *jump,
            *_positive(GapKind.SOURCE_DROP, header.camera, dropped),
            *_positive(GapKind.WIRE_LOSS, header.camera, lost),
        )

    def before_end(self, header: EndHeader) -> tuple[Gap, ...]:
        """The gap between a camera's last received record and its end; none if no records were lost there."""
        last = self._last.get(header.camera)
        if last is None or header.next_seq is None or header.stream_epoch is None or header.instance != last.instance:
            return ()
        seen = last.seq + 1 if header.stream_epoch == last.stream_epoch else 0
        if header.stream_epoch < last.stream_epoch or header.next_seq <= seen:
            return ()
        self._remember(
            header.camera, _Position(last.instance, header.stream_epoch, header.next_seq - 1, last.source_seq)
        )
        return _positive(GapKind.WIRE_LOSS, header.camera, header.next_seq - seen)

    def _remember(self, camera: str, position: _Position) -> None:
        self._last.pop(camera, None)  # keeps the dict ordered by last use
        self._last[camera] = position
        if len(self._last) > MAX_CAMERAS:
            del self._last[next(iter(self._last))]


def merge(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Merge gaps into one gap per kind and camera, with the counts summed."""
    counts: dict[tuple[GapKind, str], int] = {}
    for gap in gaps:
        counts[gap.kind, gap.camera] = counts.get((gap.kind, gap.camera), 0) + gap.count
    return tuple(Gap(kind, camera, count) for (kind, camera), count in counts.items())


def _is_past(here: _Position, last: _Position) -> bool:
    return here.instance == last.instance and (here.stream_epoch, here.seq) <= (last.stream_epoch, last.seq)


def _jump(camera: str, last: _Position, here: _Position) -> tuple[Gap, ...]:
    if here.instance != last.instance:
        return (Gap(GapKind.RESTART, camera, 1),)
    return _positive(GapKind.RECONNECT, camera, here.stream_epoch - last.stream_epoch)


def _positive(kind: GapKind, camera: str, count: int) -> tuple[Gap, ...]:
    return (Gap(kind, camera, count),) if count > 0 else ()
