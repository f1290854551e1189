"""A step attends to exactly the visible tokens, on every backend, and leaves no stream half written."""

import itertools
import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from retinad.pipeline.cache.attention_backend import AttentionBackend, KeysValues, LayerAttention
from retinad.pipeline.cache.kv_pool import KVCachePool
from retinad.pipeline.cache.page_table import VisibleRanges
from retinad.pipeline.cache.step import Step
from retinad.pipeline.cache.stream_cache import StreamState
from retinad.pipeline.config import RetentionConfig, StreamConfig

from .memory import (
    BACKENDS,
    LAYERS,
    TOLERANCE,
    Oracle,
    P,
    S,
    new_pool,
    new_state,
    poison,
    read_all,
    run,
    tokens,
    write_all,
)

on_every_backend = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)


def streams() -> list[StreamConfig]:
    flags = [RetentionConfig(*values) for values in itertools.product((True, False), repeat=3)]
    return [
        StreamConfig(scale, 2, interval, 3, retention)
        for scale, interval, retention in itertools.product((1, 4), (1, 3), flags)
    ]


# What a step attends to


@on_every_backend
def test_attention_equals_the_float64_oracle_with_every_unused_slot_poisoned(backend: AttentionBackend) -> None:
    for stream in streams():
        state, oracle = new_state(stream), Oracle(stream)
        for number, frames in enumerate((stream.scale_frames, *[1] * 14)):
            poison(state.pool, [state])
            part = tokens(number, frames)
            error = (run([state], [part], backend) - oracle.run(part)).abs().max()
            assert error <= TOLERANCE, (stream, number)  # NaN is not


class Player:
    """One of several streams: its state, its oracle and its tokens."""

    def __init__(self, rng: random.Random, pool: KVCachePool) -> None:
        retention = RetentionConfig(*(rng.random() < 0.7 for _ in range(3)))
        settings = (rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 4), rng.choice((0, 1, 2, 5, 9)))
        self.stream = StreamConfig(*settings, retention=retention)
        # Around page edges: special tokens across two pages, frames of special tokens only, history of several pages.
        self.frame_tokens = rng.choice((S, S + 1, 5, 6, 7, 12))
        self.state = new_state(self.stream, pool, self.frame_tokens)
        self.oracle = Oracle(self.stream)
        self.seed = rng.randrange(1 << 30)

    def next_part(self, rng: random.Random) -> Tensor:
        first = self.state.window.committed == 0
        self.seed += 1
        return tokens(self.seed, rng.randint(1, self.stream.scale_frames) if first else 1, self.frame_tokens)

    def restart(self) -> None:
        self.state.reset()
        self.oracle = Oracle(self.stream)


@on_every_backend
@pytest.mark.parametrize("seed", range(12))
def test_random_schedules_of_random_streams_equal_the_oracle(backend: AttentionBackend, seed: int) -> None:
    """Streams of all settings and sizes open, close and restart in one pool; those of one size share a step."""
    rng = random.Random(seed)
    pool, players = new_pool(), list[Player]()
    for _ in range(70):
        chance = rng.random()
        if not players or (chance < 0.15 and len(players) < 6):
            players.append(Player(rng, pool))
        elif chance < 0.2:
            players.pop(rng.randrange(len(players))).state.free()
        elif chance < 0.25:
            rng.choice(players).restart()
        pool.check_integrity()
        poison(pool, [player.state for player in players])
        chosen = [player for player in players if rng.random() < 0.8]
        for size in sorted({player.frame_tokens for player in chosen}):
            together = [player for player in chosen if player.frame_tokens == size]
            parts = [player.next_part(rng) for player in together]
            outputs = run([player.state for player in together], parts, backend)
            split = outputs.split_with_sizes([part.shape[2] for part in parts], dim=1)
            for player, part, output in zip(together, parts, split, strict=True):
                error = (output - player.oracle.run(part)).abs().max()
                assert error <= TOLERANCE, (player.stream, size)


@on_every_backend
def test_streams_of_different_ages_in_one_step_equal_each_alone(backend: AttentionBackend) -> None:
    settings = [StreamConfig(2, 3), StreamConfig(1, 2, keyframe_interval=2), StreamConfig(3, 1)]
    pool = new_pool()
    together, alone = [new_state(stream, pool) for stream in settings], [new_state(stream) for stream in settings]
    for number in range(12):
        # Stream i joins in step 2 i.
        joined = [i for i in range(len(settings)) if number >= 2 * i]
        counts = [settings[i].scale_frames if number == 2 * i else 1 for i in joined]
        parts = [tokens(100 * i + number, count) for i, count in zip(joined, counts, strict=True)]
        outputs = run([together[i] for i in joined], parts, backend).split_with_sizes(counts, dim=1)
        for i, part, output in zip(joined, parts, outputs, strict=True):
            torch.testing.assert_close(output, run([alone[i]], [part], backend), rtol=0, atol=TOLERANCE)


@on_every_backend
def test_two_interleaved_streams_of_different_sizes_equal_each_alone_bit_for_bit(backend: AttentionBackend) -> None:
    """Known bug of code derived from the reference: sizes were stored on the model, so streams got each other's."""
    pool, sizes, stream = new_pool(), (P, P + 2), StreamConfig(2, 3)
    together = [new_state(stream, pool, size) for size in sizes]
    alone = [new_state(stream, None, size) for size in sizes]
    for number in range(15):
        for mixed, single, size in zip(together, alone, sizes, strict=True):
            part = tokens(number, 1, size)
            assert torch.equal(run([mixed], [part], backend), run([single], [part], backend))


@on_every_backend
def test_a_non_keyframe_leaves_what_later_frames_see_bit_identical(backend: AttentionBackend) -> None:
    """Known bug of the reference's dense backend: it cached non-keyframes (lingbot-map beb91ee)."""
    state = new_state(StreamConfig(2, 3, keyframe_interval=3))
    run([state], [tokens(0, 2)], backend)
    for number in range(1, 20):
        before, window = read_all(state), state.window
        keyframe = window.plan(1).keeps
        run([state], [tokens(number, 1)], backend)
        if not keyframe:
            assert torch.equal(read_all(state), before)
            assert state.window.committed == window.committed
    assert state.window.committed == 2 + 7  # ceil(19 / 3)


# The state is a value


@on_every_backend
@pytest.mark.parametrize("stream", [StreamConfig(2, 2), StreamConfig(3, 2, 2, 4, RetentionConfig(True, False, False))])
def test_a_copied_state_continues_bit_for_bit(backend: AttentionBackend, stream: StreamConfig) -> None:
    state = new_state(stream)
    for number in range(12):
        run([state], [tokens(number, stream.scale_frames if number == 0 else 1)], backend)
        other = new_state(stream)
        poison(other.pool, [other])
        other.window = state.window
        write_all(other, read_all(state))
        part = tokens(100, 1)
        window, kept = state.window, read_all(state)
        assert torch.equal(run([state], [part], backend), run([other], [part], backend))
        state.window = window
        write_all(state, kept)


def test_a_reset_state_equals_a_new_one() -> None:
    backend = BACKENDS["dense"]
    used, new = new_state(StreamConfig(2, 2)), new_state(StreamConfig(2, 2))
    for number, frames in enumerate((2, 1, 1, 1, 1)):
        run([used], [tokens(number, frames)], backend)
    used.reset()
    for number, frames in enumerate((2, 1, 1, 1)):
        part = tokens(50 + number, frames)
        assert torch.equal(run([used], [part], backend), run([new], [part], backend))


# A step is atomic


class Broken:
    """A backend that fails in `plan`, or in one layer."""

    def __init__(self, backend: AttentionBackend, layer: int | None) -> None:
        self._backend = backend
        self._layer = layer

    whole_pages = True

    def plan(self, pool: KVCachePool, visible: Sequence[VisibleRanges]) -> LayerAttention:
        if self._layer is None:
            raise ValueError("injected")
        attend = self._backend.plan(pool, visible)

        def attend_or_fail(layer: int, query: Tensor, beside: KeysValues | None = None, /) -> Tensor:
            if layer == self._layer:
                raise RuntimeError("injected")
            return attend(layer, query, beside)

        return attend_or_fail


def fail(states: list[StreamState], parts: list[Tensor], backend: AttentionBackend, layer: int, site: str) -> None:
    """Run a step that fails in a layer at a call site."""
    broken = Broken(backend, None if site == "plan" else layer if site == "attend" else -1)
    joined = torch.cat(parts, dim=2)
    with Step(states, [part.shape[2] for part in parts], broken) as step:
        for index in range(LAYERS):
            key = joined[index, 1]
            step.append(index, key[:, :-1] if (site, layer) == ("append", index) else key, joined[index, 2])
            if (site, layer) == ("between", index):
                raise RuntimeError("injected")
            step.attend(index, joined[index, 0])
        if site != "commit":
            raise AssertionError("nothing failed")
        raise RuntimeError("injected before the commit")


@on_every_backend
@pytest.mark.parametrize("site", ["plan", "append", "between", "attend", "commit"])
@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("age", [0, 1, 4, 9])
def test_a_failed_step_leaves_each_stream_unchanged_or_empty(
    backend: AttentionBackend, site: str, layer: int, age: int
) -> None:
    """In the reference an exception in layer 2 of 3 left other layers a frame ahead, permanently."""
    settings = [
        StreamConfig(2, 2),
        StreamConfig(2, 2, 2),
        StreamConfig(4, 2, 1, 3, RetentionConfig(True, False, False)),
    ]
    pool = new_pool()
    states = [new_state(stream, pool) for stream in settings]
    counts = [[stream.scale_frames if number == 0 else 1 for stream in settings] for number in range(age + 8)]
    for number in range(age):
        run(states, [tokens(10 * number + i, count) for i, count in enumerate(counts[number])], backend)
    before = [(state.window, read_all(state)) for state in states]
    parts = [tokens(10 * age + i, count) for i, count in enumerate(counts[age])]
    with pytest.raises((RuntimeError, ValueError)):
        fail(states, parts, backend, layer, site)
    for state, (window, kept) in zip(states, before, strict=True):
        untouched = state.window == window and torch.equal(read_all(state), kept)
        assert untouched or state.window.committed == 0
        assert untouched or site != "plan"
        continues(state, settings[states.index(state)], backend)


def continues(state: StreamState, stream: StreamConfig, backend: AttentionBackend) -> None:
    """Assert that the state continues like one that never failed and has the same contents, or none."""
    fault_free = new_state(stream)
    fault_free.window = state.window
    write_all(fault_free, read_all(state))
    for number in range(6):
        part = tokens(500 + number, stream.scale_frames if state.window.committed == 0 else 1)
        assert torch.equal(run([state], [part], backend), run([fault_free], [part], backend))


@pytest.mark.parametrize("frames", [0, 2])
def test_a_step_of_a_wrong_size_is_refused(frames: int) -> None:
    backend, state = BACKENDS["dense"], new_state(StreamConfig(1, 2))
    run([state], [tokens(0, 1)], backend)
    with pytest.raises(ValueError, match="expected a step of 1 to 1"):
        Step([state], [frames], backend)


def test_the_streams_of_a_step_are_of_one_pool_each_once() -> None:
    state = new_state(StreamConfig(1, 2))
    for states in ([state, state], [state, new_state(StreamConfig(1, 2))]):
        with pytest.raises(ValueError, match="of one pool, and none may occur twice"):
            Step(states, [1, 1], BACKENDS["dense"])
