"""The dense backend computes softmax over exactly the visible tokens, and its state is a value."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from retinad.pipeline.cache.dense import DenseStep, StreamState
from retinad.pipeline.cache.ledger import Layout, Ledger
from retinad.pipeline.config import RetentionConfig, StreamConfig

LAYERS, P, S, H, D = 2, 5, 3, 2, 8
TOLERANCE = 1e-6
"""Absolute, on outputs of about 1: float32 attention over at most 60 tokens against float64."""


def new_state(stream: StreamConfig, *, poisoned: bool = True) -> StreamState:
    ledger = Ledger(Layout.of(stream, P, S))
    state = StreamState.allocate(ledger, LAYERS, H, D, torch.float32, torch.device("cpu"))
    state.storage.fill_(math.nan if poisoned else 0.0)
    return state


def tokens(seed: int, frames: int) -> Tensor:
    """Query, key, value of every layer: [LAYERS, 3, frames, P, H, D]."""
    return torch.randn(LAYERS, 3, frames, P, H, D, generator=torch.Generator().manual_seed(seed))


def run(states: list[StreamState], parts: list[Tensor]) -> Tensor:
    """One step: `parts[i]` of `tokens` into `states[i]`; outputs [LAYERS, frames, P, H, D]."""
    step = DenseStep(states, [part.shape[2] for part in parts])
    joined = torch.cat(parts, dim=2)
    outputs = []
    for layer in range(LAYERS):
        step.append(layer, joined[layer, 1], joined[layer, 2])
        outputs.append(step.attend(layer, joined[layer, 0]))
    step.commit()
    return torch.stack(outputs)


class Oracle:
    """Attention in float64 over lists of whole frames and of evicted frames' special tokens."""

    def __init__(self, stream: StreamConfig) -> None:
        self.stream = stream
        self.scale: list[Tensor] = []
        self.window: list[Tensor] = []
        self.evicted: list[Tensor] = []
        self.later = 0

    def run(self, part: Tensor) -> Tensor:
        part = part.double()
        frames = [part[:, :, i] for i in range(part.shape[2])]  # [LAYERS, 3, P, H, D] each
        seen = self._see(frames)
        memory = torch.cat(seen, dim=2)
        scores = torch.einsum("lfphd,lnhd->lfhpn", part[:, 0], memory[:, 1]) / math.sqrt(D)
        return torch.einsum("lfhpn,lnhd->lfphd", scores.softmax(-1), memory[:, 2])

    def _see(self, frames: list[Tensor]) -> list[Tensor]:
        if not self.scale and not self.window:
            if self.stream.retention.include_scale_frames:
                self.scale = frames
            else:
                self._remember(frames)
            return frames
        keyframe = self.later % self.stream.keyframe_interval == 0
        self.later += 1
        if not keyframe:
            return self.scale + self.window + self._history() + frames
        self._remember(frames)
        return self.scale + self.window + self._history()

    def _remember(self, frames: list[Tensor]) -> None:
        everything = self.window + frames
        self.evicted += everything[: -self.stream.window]
        self.window = everything[-self.stream.window :]

    def _history(self) -> list[Tensor]:
        retention = self.stream.retention
        kept = 0 if not retention.cross_frame_special else 1 if retention.camera_only else S
        return [frame[:, :, :kept] for frame in self.evicted[-self.stream.history_frames :]]


def streams() -> list[StreamConfig]:
    flags = [RetentionConfig(*values) for values in itertools.product((True, False), repeat=3)]
    return [
        StreamConfig(scale, 2, interval, 3, retention)
        for scale, interval, retention in itertools.product((1, 4), (1, 3), flags)
    ]


def test_attention_equals_the_float64_oracle_with_every_unused_place_poisoned() -> None:
    for stream in streams():
        state, oracle = new_state(stream), Oracle(stream)
        for number, frames in enumerate((stream.scale_frames, *[1] * 14)):
            part = tokens(number, frames)
            error = (run([state], [part]) - oracle.run(part)).abs().max()
            assert error <= TOLERANCE, (stream, number)  # NaN is not


def test_streams_of_different_ages_in_one_step_equal_each_alone() -> None:
    settings = [StreamConfig(2, 3), StreamConfig(1, 2, keyframe_interval=2), StreamConfig(3, 1)]
    together, alone = ([new_state(stream) for stream in settings] for _ in range(2))
    for number in range(12):
        # Stream i joins in step 2 i.
        joined = [i for i in range(len(settings)) if number >= 2 * i]
        counts = [settings[i].scale_frames if number == 2 * i else 1 for i in joined]
        parts = [tokens(100 * i + number, count) for i, count in zip(joined, counts, strict=True)]
        outputs = run([together[i] for i in joined], parts).split(counts, dim=1)
        for i, part, output in zip(joined, parts, outputs, strict=True):
            torch.testing.assert_close(output, run([alone[i]], [part]), rtol=0, atol=TOLERANCE)


def test_a_non_keyframe_leaves_what_later_frames_see_bit_identical() -> None:
    """Public fault of the reference's dense backend: it cached non-keyframes (lingbot-map beb91ee)."""
    state = new_state(StreamConfig(2, 3, keyframe_interval=3), poisoned=False)
    run([state], [tokens(0, 2)])
    for number in range(1, 20):
        before = state.copy()
        step = DenseStep([state], [1])
        if step.plans[0].keyframe:
            run([state], [tokens(number, 1)])
            continue
        run([state], [tokens(number, 1)])
        seen = slice(before.ledger.layout.front * P, before.ledger.layout.tokens)
        assert torch.equal(state.storage[:, :, seen], before.storage[:, :, seen])
        assert state.ledger.committed == before.ledger.committed
    assert state.ledger.committed == 2 + 7  # ceil(19 / 3)


def test_a_copy_goes_on_independently() -> None:
    state = new_state(StreamConfig(1, 2))
    for number in range(5):
        run([state], [tokens(number, 1)])
    copy = state.copy()
    first = run([state], [tokens(5, 1)])
    run([state], [tokens(6, 1)])
    assert torch.equal(run([copy], [tokens(5, 1)]), first)


def test_a_reset_state_equals_a_new_one() -> None:
    used, new = new_state(StreamConfig(2, 2)), new_state(StreamConfig(2, 2))
    for number, frames in enumerate((2, 1, 1, 1, 1)):
        run([used], [tokens(number, frames)])
    used.reset()
    for number, frames in enumerate((2, 1, 1, 1)):
        part = tokens(50 + number, frames)
        assert torch.equal(run([used], [part]), run([new], [part]))


@pytest.mark.parametrize("frames", [0, 2])
def test_a_step_of_a_wrong_size_is_refused(frames: int) -> None:
    state = new_state(StreamConfig(1, 2))
    run([state], [tokens(0, 1)])
    with pytest.raises(ValueError, match="a step takes"):
        DenseStep([state], [frames])
