"""The slots of a window, simulated with token names, hold and show exactly what the specification says."""

import itertools
from dataclasses import replace

import pytest

from retinad.pipeline.cache.window import MAX_RANGES, CacheLayout, CopyOp, FramePlan, StepPlan, StreamWindow
from retinad.pipeline.config import RetentionConfig, StreamConfig

P, S = 5, 3
Token = tuple[int, int]
"""Frame and index of a token within it."""


class Storage:
    """Slots that hold token names instead of keys, written and read as a backend does."""

    def __init__(self, layout: CacheLayout) -> None:
        self.slots: list[Token | None] = [None] * layout.slots
        self.window = StreamWindow(layout)

    def step(self, frames: list[int]) -> tuple[StepPlan, list[list[Token | None]]]:
        """The plan, and what each frame sees."""
        plan = self.window.plan(len(frames))
        self._copy(plan.evictions)
        for frame, planned in zip(frames, plan.frames, strict=True):
            self.slots[planned.slot : planned.slot + P] = [(frame, token) for token in range(P)]
        seen = [[name for bounds in planned.visible for name in self.slots[slice(*bounds)]] for planned in plan.frames]
        self._copy(plan.late_evictions)
        self.window = plan.after
        return plan, seen

    def _copy(self, copies: tuple[CopyOp, ...]) -> None:
        for copy in copies:
            kept = self.slots[copy.source : copy.source + copy.tokens]
            self.slots[copy.target : copy.target + copy.tokens] = kept


class Rules:
    """The rules of the specification, without slots."""

    def __init__(self, stream: StreamConfig) -> None:
        self.stream = stream
        self.scale: list[int] = []
        self.window: list[int] = []
        self.evicted: list[int] = []

    def step(self, frames: list[int], *, keyframe: bool) -> set[Token]:
        if not self.scale and not self.window:
            return self._first(frames)
        if not keyframe:
            return self._visible(self.window + frames)
        self._remember(frames)
        return self._visible(self.window)

    def _first(self, frames: list[int]) -> set[Token]:
        if self.stream.retention.include_scale_frames:
            self.scale = frames
        else:
            self._remember(frames)
        return {(frame, token) for frame in frames for token in range(P)}

    def _remember(self, frames: list[int]) -> None:
        everything = self.window + frames
        self.evicted += everything[: -self.stream.window]
        self.window = everything[-self.stream.window :]

    def _visible(self, live: list[int]) -> set[Token]:
        retention = self.stream.retention
        kept = 0 if not retention.cross_frame_special else 1 if retention.camera_only else S
        history = self.evicted[-self.stream.history_frames :] if self.stream.history_frames else []
        whole = {(frame, token) for frame in self.scale + live for token in range(P)}
        return whole | {(frame, token) for frame in history for token in range(kept)}


def streams() -> list[StreamConfig]:
    flags = [RetentionConfig(*values) for values in itertools.product((True, False), repeat=3)]
    sizes = itertools.product((1, 2, 5), (1, 3, 4), (1, 3), (0, 2, 100))
    return [
        StreamConfig(*size, retention=retention, run_frames=run)
        for size in sizes
        for retention in flags
        for run in (1, 2, 4)
    ]


def frames_by_step(stream: StreamConfig, first: int, total: int) -> list[list[int]]:
    """Frame numbers of each step: the first, then steps of every length that the stream allows, in turn."""
    steps, frame, lengths = [list(range(first))], first, itertools.cycle(range(stream.frames_per_step, 0, -1))
    while frame < total:
        steps.append(list(range(frame, frame + next(lengths))))
        frame = steps[-1][-1] + 1
    return steps


def assert_counted(planned: FramePlan, stream: StreamConfig) -> None:
    """The context counts the visible slots in frames, and leaves out no keyframe."""
    context, kept = planned.context, CacheLayout.of(stream, P, S).entry_tokens
    slots = sum(stop - start for start, stop in planned.visible)
    assert slots == context.frames * P + context.history_frames * kept
    if planned.number >= stream.scale_frames:
        remembered = context.frames + context.history_frames + context.forgotten_frames - 1
        assert remembered == planned.number


@pytest.mark.parametrize("short", [False, True], ids=["all scale frames", "fewer scale frames"])
def test_a_step_sees_what_the_rules_say_each_token_once(short: bool) -> None:
    for stream in streams():
        storage, rules = Storage(CacheLayout.of(stream, P, S)), Rules(stream)
        first = 1 if short else stream.scale_frames
        for frames in frames_by_step(stream, first, first + 20):
            plan, seen = storage.step(frames)
            by_one = [frames] if plan.first else [[frame] for frame in frames]
            for group, planned, tokens in zip(by_one, plan.frames, seen, strict=False):
                keyframe = plan.first or (group[0] - first) % stream.keyframe_interval == 0
                expected = rules.step(group, keyframe=keyframe)
                assert planned.keyframe == keyframe
                assert_counted(planned, stream)
                assert len(tokens) == len(expected), (stream, frames)
                assert set(tokens) == expected, (stream, frames)
                assert len(planned.visible) <= MAX_RANGES or plan.first
            assert all(tokens == seen[0] for tokens in seen) or not plan.first


def test_a_step_of_a_single_frame_sees_one_range() -> None:
    """Kernels that read pages rely on this."""
    for stream in streams():
        storage = Storage(CacheLayout.of(stream, P, S))
        if stream.frames_per_step == 1:
            for frames in frames_by_step(stream, stream.scale_frames, 20):
                plan, _ = storage.step(frames)
                assert all(len(planned.visible) == 1 for planned in plan.frames), stream


def test_frame_numbers_count_committed_frames_only() -> None:
    """A non-keyframe has the number of the next keyframe."""
    window = StreamWindow(CacheLayout.of(StreamConfig(scale_frames=2, window=4, keyframe_interval=3), P, S))
    numbers = []
    for count in (2, *[1] * 7):
        plan = window.plan(count)
        numbers += [planned.number for planned in plan.frames]
        window = plan.after
    assert numbers == [0, 1, 2, 3, 3, 3, 4, 4, 4]
    assert window.committed == 5


def test_a_demanded_keyframe_enters_and_the_interval_counts_from_it() -> None:
    window = StreamWindow(CacheLayout.of(StreamConfig(scale_frames=2, window=4, keyframe_interval=3), P, S))
    window, keyframes = window.plan(2).after, []
    for number in range(12):
        demanded = number in (2, 6, 7)
        window = replace(window, demanded=demanded)
        expected, plan = window.keyframe_is_next, window.plan(1)
        assert plan.keeps == expected
        keyframes += [number] if plan.keeps else []
        window = plan.after
        assert not window.demanded
    assert keyframes == [0, 2, 5, 6, 7, 10]


def test_a_demand_before_the_first_step_changes_nothing() -> None:
    window = StreamWindow(CacheLayout.of(StreamConfig(scale_frames=2), P, S))
    assert replace(window, demanded=True).plan(2) == window.plan(2)


def test_the_number_of_visible_tokens_stays_constant() -> None:
    window = StreamWindow(CacheLayout.of(StreamConfig(scale_frames=2, window=4, history_frames=10), P, S))
    window = window.plan(2).after
    attended = {}
    for frame in range(100_000):
        plan = window.plan(1)
        attended[frame] = sum(stop - start for start, stop in plan.frames[0].visible)
        window = plan.after
    assert attended[1_000] == attended[10_000] == attended[99_999] == (2 + 4) * P + 10 * S
    assert max(attended.values()) <= window.layout.slots


@pytest.mark.parametrize(("before", "frames"), [(0, 0), (0, 3), (2, 0), (2, 2)])
def test_a_step_of_a_wrong_size_is_refused(before: int, frames: int) -> None:
    window = StreamWindow(CacheLayout.of(StreamConfig(scale_frames=2), P, S))
    if before:
        window = window.plan(before).after
    with pytest.raises(ValueError, match="expected a step of"):
        window.plan(frames)


def test_planning_changes_nothing() -> None:
    window = StreamWindow(CacheLayout.of(StreamConfig(scale_frames=2), P, S))
    assert window.plan(2) == window.plan(2)
    assert window.committed == 0
