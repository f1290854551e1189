"""Which frame's tokens stand where in a stream's storage, in plain Python: once for all layers, which are alike.

Storage is one range of token places, in this order:

    | front slots | pinned slots (scale frames) | ring slots (window) | history (special tokens of evicted frames) |

A slot holds the P tokens of one frame. Front slots hold frames that are attended to in their own step only: a
non-keyframe, or scale frames that do not fit into the window when nothing is pinned. The history begins to fill when
the ring is full, so what a step attends to is always one unbroken range of places; keys may stand in any order.
"""

from dataclasses import dataclass, replace

from ..config import StreamConfig


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of a stream's storage.

    Attributes:
        frame_tokens: P, tokens of a frame.
        front: front slots.
        window: ring slots.
        pinned: scale frames that stay for ever, at most.
        scale_frames: frames of the stream's first step, at most.
        keyframe_interval: after the first step, every n-th frame is a keyframe.
        history: evicted frames that leave tokens behind, at most.
        kept_tokens: tokens, from a frame's first on, that an evicted frame leaves behind.
    """

    frame_tokens: int
    front: int
    window: int
    pinned: int
    scale_frames: int
    keyframe_interval: int
    history: int
    kept_tokens: int

    @classmethod
    def of(cls, stream: StreamConfig, frame_tokens: int, special_tokens: int) -> "Layout":
        """The layout for frames of `frame_tokens` tokens, the first `special_tokens` of which are special."""
        retention = stream.retention
        pinned = stream.scale_frames if retention.include_scale_frames else 0
        overflow = 0 if pinned else max(0, stream.scale_frames - stream.window)
        return cls(
            frame_tokens=frame_tokens,
            front=max(overflow, 1 if stream.keyframe_interval > 1 else 0),
            window=stream.window,
            pinned=pinned,
            scale_frames=stream.scale_frames,
            keyframe_interval=stream.keyframe_interval,
            history=stream.kept_history if retention.cross_frame_special else 0,
            kept_tokens=1 if retention.camera_only else special_tokens,
        )

    @property
    def tokens(self) -> int:
        """N, token places in all."""
        return (self.front + self.pinned + self.window) * self.frame_tokens + self.history * self.kept_tokens


@dataclass(frozen=True, slots=True)
class Move:
    """Copy `tokens` tokens from place `source` to place `target`."""

    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does to a stream's storage, and what it attends to.

    Attributes:
        frame_numbers: frames committed before each frame of the step: its position in time.
        keyframe: whether the frames stay in memory.
        first: whether this is the stream's first step, whose frames all attend to each other.
        evictions: copies before the step: special tokens of the frame whose slot is about to be written.
        places: first place of each frame's P tokens.
        visible: first and last + 1 of the places attended to.
        late_evictions: copies after the step: special tokens of scale frames that found no room in the window.
        after: the ledger once the step is committed.
    """

    frame_numbers: tuple[int, ...]
    keyframe: bool
    first: bool
    evictions: tuple[Move, ...]
    places: tuple[int, ...]
    visible: tuple[int, int]
    late_evictions: tuple[Move, ...]
    after: "Ledger"


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a stream's storage holds, as a value: until a step's `after` is taken, nothing has changed.

    Attributes:
        layout: sizes of the storage.
        committed: frames committed so far, scale frames included.
        pinned: scale frames that stay for ever.
        later: frames after the first step, non-keyframes included.
    """

    layout: Layout
    committed: int = 0
    pinned: int = 0
    later: int = 0

    @property
    def ringed(self) -> int:
        """Frames that have gone into the ring so far."""
        return self.committed - self.pinned

    @property
    def live(self) -> int:
        """Frames that stand in the ring now."""
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
    def kept(self) -> tuple[int, int]:
        """First and last + 1 of the places that later steps can see; none in an empty stream."""
        return self._place(0), self._visible_stop()

    def plan(self, frames: int) -> StepPlan:
        """What a step of the next `frames` frames does: up to `scale_frames` in the first step, then one.

        Raises:
            ValueError: that is not how many frames the step may have.
        """
        most = 1 if self.committed else self.layout.scale_frames
        if not 1 <= frames <= most:
            raise ValueError(f"a step takes 1 to {most} frames here, got {frames}")
        if not self.committed:
            return self._plan_first(frames)
        if self.later % self.layout.keyframe_interval == 0:
            return self._plan_keyframe()
        return self._plan_passing()

    def _plan_first(self, frames: int) -> StepPlan:
        pinned = frames if self.layout.pinned else 0
        overflow = 0 if pinned else max(0, frames - self.layout.window)
        after = replace(self, committed=frames, pinned=pinned)
        slots = [i - overflow if i < overflow else self._first_slot(i, pinned) for i in range(frames)]
        places = tuple(self._place(slot) for slot in slots)
        return StepPlan(
            frame_numbers=tuple(range(frames)),
            keyframe=True,
            first=True,
            evictions=(),
            places=places,
            visible=(self._place(-overflow), self._place(frames - overflow)),
            late_evictions=after._moves(places[:overflow], first_number=0),
            after=after,
        )

    def _first_slot(self, frame: int, pinned: int) -> int:
        return frame if pinned else frame % self.layout.window

    def _plan_keyframe(self) -> StepPlan:
        slot = self.pinned + self.ringed % self.layout.window
        place = self._place(slot)
        after = replace(self, committed=self.committed + 1, later=self.later + 1)
        leaving = (place,) if after.evicted > self.evicted else ()
        return StepPlan(
            frame_numbers=(self.committed,),
            keyframe=True,
            first=False,
            evictions=after._moves(leaving, first_number=self.evicted),
            places=(place,),
            visible=(self._place(0), after._visible_stop()),
            late_evictions=(),
            after=after,
        )

    def _plan_passing(self) -> StepPlan:
        place = self._place(-1)
        return StepPlan(
            frame_numbers=(self.committed,),
            keyframe=False,
            first=False,
            evictions=(),
            places=(place,),
            visible=(place, self._visible_stop()),
            late_evictions=(),
            after=replace(self, later=self.later + 1),
        )

    def _place(self, slot: int) -> int:
        # Slots are counted from the first one behind the front slots.
        return (self.layout.front + slot) * self.layout.frame_tokens

    def _visible_stop(self) -> int:
        return self._place(self.pinned + self.live) + self.remembered * self.layout.kept_tokens

    def _moves(self, places: tuple[int, ...], first_number: int) -> tuple[Move, ...]:
        if not self.layout.history:
            return ()
        start, tokens = self._place(self.pinned + self.layout.window), self.layout.kept_tokens
        return tuple(
            Move(place, start + number % self.layout.history * tokens, tokens)
            for number, place in enumerate(places, first_number)
        )
