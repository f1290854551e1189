"""Which frame's tokens stand where in a stream's storage, in plain Python: once for all layers, which are alike.

Storage is one range of token places, in this order:

    | front slots | pinned slots (scale frames) | ring slots (window) | history (special tokens of evicted frames) |

A slot holds the P tokens of one frame. Front slots hold frames that are attended to in their own step only:
non-keyframes, or scale frames that do not fit into the window when nothing is pinned. The history begins to fill when
the window is full, so what a step of one frame attends to is always one unbroken range of places; keys may stand in any
order. A run of frames in one step sees a window that moves on with each of them: the ring and the history have room for
the frames that only the first of a run still sees, and what a frame sees is up to `MOST_RANGES` ranges.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..config import StreamConfig
from ..frames import Context

Range = tuple[int, int]
"""First and last + 1 of some places."""

MOST_RANGES = 5
"""A front slot, the scale frames, and two arcs each of the ring and of the history."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Sizes of a stream's storage.

    Attributes:
        frame_tokens: P, tokens of a frame.
        front: front slots.
        window: keyframes that are attended to whole, at most.
        pinned: scale frames that stay for ever, at most.
        scale_frames: frames of the stream's first step, at most.
        keyframe_interval: after the first step, every n-th frame is a keyframe.
        history: evicted frames whose special tokens are attended to, at most.
        kept_tokens: tokens, from a frame's first on, that an evicted frame leaves behind.
        frames_per_step: frames of a later step, at most.
    """

    frame_tokens: int
    front: int
    window: int
    pinned: int
    scale_frames: int
    keyframe_interval: int
    history: int
    kept_tokens: int
    frames_per_step: int = 1

    @classmethod
    def of(cls, stream: StreamConfig, frame_tokens: int, special_tokens: int) -> "CacheLayout":
        """The layout for frames of `frame_tokens` tokens, the first `special_tokens` of which are special."""
        retention, run = stream.retention, stream.frames_per_step
        pinned = stream.scale_frames if retention.include_scale_frames else 0
        overflow = 0 if pinned else max(0, stream.scale_frames - stream.window)
        return cls(
            frame_tokens=frame_tokens,
            front=max(overflow, run - run // stream.keyframe_interval),
            window=stream.window,
            pinned=pinned,
            scale_frames=stream.scale_frames,
            keyframe_interval=stream.keyframe_interval,
            history=stream.kept_history if retention.cross_frame_special else 0,
            kept_tokens=1 if retention.camera_only else special_tokens,
            frames_per_step=run,
        )

    @property
    def ring(self) -> int:
        """Ring slots: the last frame of a run is written while the first still sees all of its window."""
        return self.window + self.frames_per_step - 1

    @property
    def history_slots(self) -> int:
        """Evicted frames that leave tokens in the storage, at most."""
        return self.history + self.frames_per_step - 1 if self.history else 0

    @property
    def slots(self) -> int:
        """Slots of all kinds."""
        return self.front + self.pinned + self.ring

    @property
    def tokens(self) -> int:
        """N, token places in all."""
        return self.slots * self.frame_tokens + self.history_slots * self.kept_tokens


@dataclass(frozen=True, slots=True)
class CopyOp:
    """Copy `tokens` tokens from place `source` to place `target`."""

    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True)
class FramePlan:
    """What becomes of one frame of a step.

    Attributes:
        number: frames committed before it: its position in time.
        keyframe: whether it stays in memory.
        place: first place of its P tokens.
        visible: the places that it attends to, in ascending order, none adjacent to the next.
        context: the same, counted in frames.
    """

    number: int
    keyframe: bool
    place: int
    visible: tuple[Range, ...]
    context: Context


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does to a stream's storage, and what it attends to.

    Attributes:
        frames: what becomes of each frame.
        first: whether this is the stream's first step, whose frames all attend to each other.
        evictions: copies before the step: special tokens of frames that leave the window.
        late_evictions: copies after the step: special tokens of scale frames that found no room in the window.
        after: the ledger once the step is committed.
    """

    frames: tuple[FramePlan, ...]
    first: bool
    evictions: tuple[CopyOp, ...]
    late_evictions: tuple[CopyOp, ...]
    after: "StreamWindow"

    @property
    def keeps(self) -> bool:
        """Whether any of the frames stays in memory."""
        return any(frame.keyframe for frame in self.frames)


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """What a stream's storage holds, as a value: until a step's `after` is taken, nothing has changed.

    Attributes:
        layout: sizes of the storage.
        committed: frames committed so far, scale frames included.
        pinned: scale frames that stay for ever.
        later: frames after the first step, non-keyframes included.
    """

    layout: CacheLayout
    committed: int = 0
    pinned: int = 0
    later: int = 0

    @property
    def ringed(self) -> int:
        """Frames that have gone into the ring so far."""
        return self.committed - self.pinned

    @property
    def live(self) -> int:
        """Frames of the window now."""
        return min(self.ringed, self.layout.window)

    @property
    def evicted(self) -> int:
        """Frames that have left the window so far."""
        return self.ringed - self.live

    @property
    def remembered(self) -> int:
        """Evicted frames whose special tokens are still attended to."""
        return min(self.evicted, self.layout.history)

    @property
    def kept(self) -> tuple[Range, ...]:
        """The places that later steps can see, in ascending order, none adjacent to the next; none if it is empty."""
        size, kept = self.layout.frame_tokens, self.layout.kept_tokens
        window = _arcs(self.evicted, self.live, self.layout.ring)
        history = _arcs(self.evicted - self.remembered, self.remembered, self.layout.history_slots)
        ring, past = self._place(self.pinned), self._history_start
        return _joined(
            (
                (self._place(0), ring),
                *((ring + start * size, ring + stop * size) for start, stop in window),
                *((past + start * kept, past + stop * kept) for start, stop in history),
            )
        )

    def plan(self, frames: int) -> StepPlan:
        """Plan a step of the next `frames` frames: up to `scale_frames` in the first step, then `frames_per_step`.

        Raises:
            ValueError: that is not how many frames the step may have.
        """
        most = self.layout.frames_per_step if self.committed else self.layout.scale_frames
        if not 1 <= frames <= most:
            raise ValueError(f"a step takes 1 to {most} frames here, got {frames}")
        return self._plan_run(frames) if self.committed else self._plan_first(frames)

    def _plan_first(self, frames: int) -> StepPlan:
        pinned = frames if self.layout.pinned else 0
        overflow = 0 if pinned else max(0, frames - self.layout.window)
        after = replace(self, committed=frames, pinned=pinned)
        slots = [i - overflow if i < overflow else self._first_slot(i, pinned) for i in range(frames)]
        places = [self._place(slot) for slot in slots]
        visible = _joined((place, place + self.layout.frame_tokens) for place in sorted(places))
        context = Context(frames)
        return StepPlan(
            frames=tuple(FramePlan(number, True, place, visible, context) for number, place in enumerate(places)),
            first=True,
            evictions=(),
            late_evictions=after._moves(places[:overflow], first_number=0),
            after=after,
        )

    def _first_slot(self, frame: int, pinned: int) -> int:
        return frame if pinned else frame % self.layout.ring

    def _plan_run(self, frames: int) -> StepPlan:
        ledger, planned, evictions, passing = self, list[FramePlan](), list[CopyOp](), 0
        for _ in range(frames):
            if ledger.later % self.layout.keyframe_interval:
                passing += 1
                planned.append(ledger._passing(-passing))
                ledger = replace(ledger, later=ledger.later + 1)
                continue
            after = replace(ledger, committed=ledger.committed + 1, later=ledger.later + 1)
            if after.evicted > ledger.evicted:
                leaving = ledger._place(self.pinned + ledger.evicted % self.layout.ring)
                evictions += after._moves([leaving], first_number=ledger.evicted)
            place = self._place(self.pinned + ledger.ringed % self.layout.ring)
            planned.append(FramePlan(ledger.committed, True, place, after.kept, after._context(0)))
            ledger = after
        return StepPlan(tuple(planned), first=False, evictions=tuple(evictions), late_evictions=(), after=ledger)

    def _passing(self, slot: int) -> FramePlan:
        place = self._place(slot)
        visible = _joined(((place, place + self.layout.frame_tokens), *self.kept))
        return FramePlan(self.committed, False, place, visible, self._context(1))

    def _context(self, passing: int) -> Context:
        return Context(self.pinned + self.live + passing, self.remembered, self.evicted - self.remembered)

    def _place(self, slot: int) -> int:
        # Slots are counted from the first one behind the front slots.
        return (self.layout.front + slot) * self.layout.frame_tokens

    @property
    def _history_start(self) -> int:
        return self._place(self.pinned + self.layout.ring)

    def _moves(self, places: Sequence[int], first_number: int) -> tuple[CopyOp, ...]:
        if not self.layout.history:
            return ()
        start, tokens = self._history_start, self.layout.kept_tokens
        return tuple(
            CopyOp(place, start + number % self.layout.history_slots * tokens, tokens)
            for number, place in enumerate(places, first_number)
        )


def padded(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """As many ranges as a frame can see, the last of them empty: tables for kernels have one shape."""
    return (*ranges, *((0, 0),) * (MOST_RANGES - len(ranges)))


def _arcs(first: int, count: int, size: int) -> tuple[Range, ...]:
    # Where `count` things in a row, the first of them number `first`, stand in a circle of `size`.
    if not count:
        return ()
    start = first % size
    stop = start + count
    if count == size:
        return ((0, size),)
    return ((start, stop),) if stop <= size else ((0, stop - size), (start, size))


def _joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    # Ascending ranges, without empty ones, adjacent ones made one.
    joined: list[Range] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif stop > start:
            joined.append((start, stop))
    return tuple(joined)
