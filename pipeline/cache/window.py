"""The sliding window of a stream: which slots of its storage hold which frame's tokens, and what each frame sees.

Plain Python, without storage. One window serves all layers, since they all hold the same tokens.

A slot holds the keys and values of one token. A stream's slots are one contiguous range:

    | front pages | pinned pages (scale frames) | ring pages (window) | history (special tokens of evicted frames) |

A page holds the P tokens of one frame. Front pages hold frames that are visible in their own step only:
non-keyframes, or scale frames that exceed the window when nothing is pinned. The history fills up only after the window
is full, so a step of one frame always sees one contiguous range of slots; keys may be in any order.

With several frames per step, each frame sees a different window. So the ring and the history also have room for the
frames that only the first frame of the step still sees. Each frame sees up to `MAX_RANGES` ranges of slots.

A network with `slot_tokens` (HorizonStream) has a ring alone, of one page less: what a frame sees of itself is not
read from its page, see `row_plan`. Its frames look back only, in the first step too. But each frame also has some
tokens of its own for every frame of its window, which attend to that frame, and are never stored. In the first step,
the window is all frames of the step.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..config import StreamConfig
from ..frames import Context

Range = tuple[int, int]
"""A range of slots: the first slot, and the slot after the last one."""

MAX_RANGES = 5
"""Most ranges that a frame can see: a front page, the scale frames, two arcs of the ring and two of the history."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Sizes of a stream's storage.

    Attributes:
        frame_tokens: P, the number of tokens per frame, which is also the number of slots per page.
        front_pages: number of pages for frames that are visible in their own step only.
        window_frames: maximum number of keyframes whose tokens are all visible.
        pinned_pages: number of pages for scale frames that are never evicted.
        scale_frames: maximum number of frames in the stream's first step.
        keyframe_interval: after the first step, every n-th frame is a keyframe, counted from the last one that was
            demanded.
        history_frames: maximum number of evicted frames whose special tokens are visible.
        entry_tokens: number of tokens per history entry; they are the first tokens of an evicted frame.
        frames_per_step: maximum number of frames in each step after the first.
        slot_tokens: number of tokens that a frame has for each frame of its window, beside the P tokens.
    """

    frame_tokens: int
    front_pages: int
    window_frames: int
    pinned_pages: int
    scale_frames: int
    keyframe_interval: int
    history_frames: int
    entry_tokens: int
    frames_per_step: int = 1
    slot_tokens: int = 0

    @classmethod
    def window_alone(cls, stream: StreamConfig, frame_tokens: int, slot_tokens: int) -> "CacheLayout":
        """Make the layout for a network with `slot_tokens`: the window, without pinned frames and history.

        Raises:
            ValueError: the stream's settings ask for something else, or its first step is not a whole window.
        """
        wanted = {"scale_frames": stream.window, "keyframe_interval": 1, "history_frames": 0}
        for name, value in wanted.items():
            if getattr(stream, name) != value:
                raise ValueError(f"{name} must be {value} for this network, got {getattr(stream, name)}")
        return cls(
            frame_tokens=frame_tokens,
            front_pages=0,
            window_frames=stream.window,
            pinned_pages=0,
            scale_frames=stream.window,
            keyframe_interval=1,
            history_frames=0,
            entry_tokens=1,
            frames_per_step=stream.frames_per_step,
            slot_tokens=slot_tokens,
        )

    @classmethod
    def of(cls, stream: StreamConfig, frame_tokens: int, special_tokens: int) -> "CacheLayout":
        """Make the layout for frames of `frame_tokens` tokens; the first `special_tokens` of these are special."""
        retention, per_step = stream.retention, stream.frames_per_step
        pinned = stream.scale_frames if retention.include_scale_frames else 0
        overflow = 0 if pinned else max(0, stream.scale_frames - stream.window)
        return cls(
            frame_tokens=frame_tokens,
            front_pages=max(overflow, per_step - per_step // stream.keyframe_interval),
            window_frames=stream.window,
            pinned_pages=pinned,
            scale_frames=stream.scale_frames,
            keyframe_interval=stream.keyframe_interval,
            history_frames=stream.kept_history if retention.cross_frame_special else 0,
            entry_tokens=1 if retention.camera_only else special_tokens,
            frames_per_step=per_step,
        )

    @property
    def ring_pages(self) -> int:
        """Number of pages in the ring: a full window for a step's first frame, plus a page for each further frame.

        With `slot_tokens`, it is one less, but never 0.
        """
        pages = self.kept_frames + self.frames_per_step - 1
        return max(1, pages) if self.slot_tokens else pages

    @property
    def kept_frames(self) -> int:
        """Maximum number of keyframes whose tokens are all visible to the next step's first frame, beside its own."""
        return self.window_frames - 1 if self.slot_tokens else self.window_frames

    @property
    def frame_pages(self) -> int:
        """Number of pages that hold frames: front, pinned and ring pages."""
        return self.front_pages + self.pinned_pages + self.ring_pages

    @property
    def history_entries(self) -> int:
        """Number of history entries, each with `entry_tokens` slots."""
        return self.history_frames + self.frames_per_step - 1 if self.history_frames else 0

    @property
    def slots(self) -> int:
        """N, the stream's number of slots."""
        return self.frame_pages * self.frame_tokens + self.history_entries * self.entry_tokens

    @property
    def pages(self) -> int:
        """Total number of pages: the frame pages and those that the history occupies."""
        return -(-self.slots // self.frame_tokens)


@dataclass(frozen=True, slots=True)
class CopyOp:
    """A copy of `tokens` consecutive slots: the first source slot is `source`, the first target slot is `target`."""

    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True)
class FramePlan:
    """One frame of a step.

    Attributes:
        number: number of frames committed before this frame, which is the frame's position in time.
        keyframe: whether the frame enters the window.
        slot: first slot of the frame's P tokens.
        visible: the slots that the frame attends to, as ascending ranges with gaps between them. With `slot_tokens`,
            without the frame's own.
        context: how many frames these slots belong to.
        window: with `slot_tokens`, the first slot of each frame of the window, oldest first; otherwise empty.
        later: number of frames after the stream's first step and before this frame; None in the first step.
    """

    number: int
    keyframe: bool
    slot: int
    visible: tuple[Range, ...]
    context: Context
    window: tuple[int, ...] = ()
    later: int | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step writes to a stream's storage, and what its frames attend to.

    Attributes:
        frames: the frames.
        first: whether this is the stream's first step, in which all frames attend to each other.
        evictions: copies to make before the step: special tokens of frames that leave the window.
        late_evictions: copies to make after the step: special tokens of scale frames that exceed the window.
        after: the window once the step is committed.
    """

    frames: tuple[FramePlan, ...]
    first: bool
    evictions: tuple[CopyOp, ...]
    late_evictions: tuple[CopyOp, ...]
    after: "StreamWindow"

    @property
    def keeps(self) -> bool:
        """Whether any of the frames enters the window."""
        return any(frame.keyframe for frame in self.frames)


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """What a stream's storage holds. Immutable: a step takes effect only when its `after` replaces the window.

    Attributes:
        layout: sizes of the storage.
        committed: number of frames committed so far, including scale frames.
        pinned: number of scale frames that are never evicted.
        later: number of frames after the first step, including non-keyframes. A demanded keyframe counts as the first.
        demanded: whether the next frame must be a keyframe.
    """

    layout: CacheLayout
    committed: int = 0
    pinned: int = 0
    later: int = 0
    demanded: bool = False

    @property
    def keyframe_is_next(self) -> bool:
        """Whether the next frame is a keyframe."""
        return self.demanded or not self.committed or self.later % self.layout.keyframe_interval == 0

    @property
    def ringed(self) -> int:
        """Number of frames written to the ring so far."""
        return self.committed - self.pinned

    @property
    def live(self) -> int:
        """Number of frames whose tokens are all kept, without pinned ones."""
        return min(self.ringed, self.layout.kept_frames)

    @property
    def evicted(self) -> int:
        """Number of frames that have left the window so far."""
        return self.ringed - self.live

    @property
    def remembered(self) -> int:
        """Number of evicted frames whose special tokens are still visible."""
        return min(self.evicted, self.layout.history_frames)

    @property
    def kept(self) -> tuple[Range, ...]:
        """The slots that later steps can see, as ascending ranges with gaps between them; empty for an empty window."""
        page, entry = self.layout.frame_tokens, self.layout.entry_tokens
        ring_arcs = _arcs(self.evicted, self.live, self.layout.ring_pages)
        history_arcs = _arcs(self.evicted - self.remembered, self.remembered, self.layout.history_entries)
        ring, history = self._page_slot(self.pinned), self._history_slot
        return _merged(
            (
                (self._page_slot(0), ring),
                *((ring + start * page, ring + stop * page) for start, stop in ring_arcs),
                *((history + start * entry, history + stop * entry) for start, stop in history_arcs),
            )
        )

    def next_window(self, frames: int) -> int:
        """With `slot_tokens`, the number of frames of the window in a next step of `frames` frames; otherwise 0.

        The window of a first step is its frames. If they are fewer than a whole window, it grows with every frame.
        """
        if not self.layout.slot_tokens:
            return 0
        return min(self.layout.window_frames, self.committed + 1) if self.committed else frames

    @property
    def growing(self) -> bool:
        """Whether the window of the next step's frames is longer from frame to frame; only with `slot_tokens`."""
        return self.layout.slot_tokens > 0 and 0 < self.committed < self.layout.window_frames - 1

    def plan(self, frames: int) -> StepPlan:
        """Plan a step of `frames` frames: at most `scale_frames` in the first step, later at most `frames_per_step`.

        Raises:
            ValueError: the step cannot have this many frames.
        """
        most = self.layout.frames_per_step if self.committed else self.layout.scale_frames
        if not 1 <= frames <= most:
            raise ValueError(f"expected a step of 1 to {most} frames, got {frames}")
        if self.layout.slot_tokens:
            return self._plan_rows(frames)
        return self._plan_later(frames) if self.committed else self._plan_first(frames)

    def plan_query(self, slot: int) -> StepPlan:
        """Plan a step of one frame that sees what the window shows, and leaves no trace in it. It is not committed.

        Args:
            slot: first of P slots outside the stream's storage, where the frame's own tokens go.

        Raises:
            ValueError: the window is empty.
        """
        if not self.committed:
            raise ValueError("an empty window cannot be queried")
        own = (slot, slot + self.layout.frame_tokens)
        frame = FramePlan(self.committed, False, slot, _merged(sorted((own, *self.kept))), self._context(1))
        return StepPlan((frame,), first=False, evictions=(), late_evictions=(), after=self)

    def _plan_first(self, frames: int) -> StepPlan:
        pinned = frames if self.layout.pinned_pages else 0
        overflow = 0 if pinned else max(0, frames - self.layout.window_frames)
        after = replace(self, committed=frames, pinned=pinned, demanded=False)
        pages = [i - overflow if i < overflow else self._first_page(i, pinned) for i in range(frames)]
        slots = [self._page_slot(page) for page in pages]
        visible = _merged((slot, slot + self.layout.frame_tokens) for slot in sorted(slots))
        context = Context(frames)
        return StepPlan(
            frames=tuple(FramePlan(number, True, slot, visible, context) for number, slot in enumerate(slots)),
            first=True,
            evictions=(),
            late_evictions=after._copies(slots[:overflow], first_number=0),
            after=after,
        )

    def _plan_rows(self, frames: int) -> StepPlan:
        planned = tuple(self._plan_row(self.committed + number, frames) for number in range(frames))
        later = self.later + frames if self.committed else 0
        after = replace(self, committed=self.committed + frames, later=later)
        return StepPlan(planned, not self.committed, evictions=(), late_evictions=(), after=after)

    def _plan_row(self, number: int, frames: int) -> FramePlan:
        page, ring = self.layout.frame_tokens, self.layout.ring_pages
        oldest = max(0, number - self.layout.window_frames + 1)
        window = range(oldest, number + 1) if self.committed else range(frames)
        arcs = _arcs(oldest, number - oldest, ring)
        return FramePlan(
            number,
            True,
            slot=number % ring * page,
            visible=tuple((start * page, stop * page) for start, stop in arcs),
            context=Context(number - oldest + 1),
            window=tuple(member % ring * page for member in window),
            later=self.later + number - self.committed if self.committed else None,
        )

    def _first_page(self, frame: int, pinned: int) -> int:
        return frame if pinned else frame % self.layout.ring_pages

    def _plan_later(self, frames: int) -> StepPlan:
        window, planned, evictions, transient = self, list[FramePlan](), list[CopyOp](), 0
        for _ in range(frames):
            if not window.keyframe_is_next:
                transient += 1
                planned.append(window._plan_transient(-transient))
                window = replace(window, later=window.later + 1)
                continue
            later = 1 if window.demanded else window.later + 1
            after = replace(window, committed=window.committed + 1, later=later, demanded=False)
            if after.evicted > window.evicted:
                leaving = window._page_slot(self.pinned + window.evicted % self.layout.ring_pages)
                evictions += after._copies([leaving], first_number=window.evicted)
            slot = self._page_slot(self.pinned + window.ringed % self.layout.ring_pages)
            planned.append(FramePlan(window.committed, True, slot, after.kept, after._context(0), later=window.later))
            window = after
        return StepPlan(tuple(planned), first=False, evictions=tuple(evictions), late_evictions=(), after=window)

    def _plan_transient(self, page: int) -> FramePlan:
        slot = self._page_slot(page)
        visible = _merged(((slot, slot + self.layout.frame_tokens), *self.kept))
        return FramePlan(self.committed, False, slot, visible, self._context(1), later=self.later)

    def _context(self, transient: int) -> Context:
        return Context(self.pinned + self.live + transient, self.remembered, self.evicted - self.remembered)

    def _page_slot(self, page: int) -> int:
        # The first slot of a page. Page 0 is the first one after the front pages, which have negative numbers.
        return (self.layout.front_pages + page) * self.layout.frame_tokens

    @property
    def _history_slot(self) -> int:
        return self._page_slot(self.pinned + self.layout.ring_pages)

    def _copies(self, slots: Sequence[int], first_number: int) -> tuple[CopyOp, ...]:
        if not self.layout.history_frames:
            return ()
        start, tokens = self._history_slot, self.layout.entry_tokens
        return tuple(
            CopyOp(slot, start + number % self.layout.history_entries * tokens, tokens)
            for number, slot in enumerate(slots, first_number)
        )


def padded(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """Append empty ranges to make `MAX_RANGES` in all, because tables for kernels have a fixed shape."""
    return (*ranges, *((0, 0),) * (MAX_RANGES - len(ranges)))


def _arcs(first: int, count: int, size: int) -> tuple[Range, ...]:
    # The positions, in a ring of `size` entries, of `count` consecutive entries whose first has number `first`.
    if not count:
        return ()
    start = first % size
    stop = start + count
    if count == size:
        return ((0, size),)
    return ((start, stop),) if stop <= size else ((0, stop - size), (start, size))


def _merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    # Takes ascending ranges; merges adjacent ones and leaves out empty ones.
    merged: list[Range] = []
    for start, stop in ranges:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        elif stop > start:
            merged.append((start, stop))
    return tuple(merged)
