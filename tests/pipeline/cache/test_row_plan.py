"""Which slots a row and the tokens of its slots see, in the first step and after the ring has wrapped."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from retinad.pipeline.cache.allocator import Span
from retinad.pipeline.cache.backends.dense import DenseBackend, attend_all
from retinad.pipeline.cache.backends.paged import PagedBackend
from retinad.pipeline.cache.page_table import VisibleRanges
from retinad.pipeline.cache.row_plan import row_groups, slot_groups
from retinad.pipeline.cache.window import CacheLayout, StreamWindow
from retinad.pipeline.config import StreamConfig

from .memory import D, H, new_pool

P, X, WINDOW = 5, 2, 3
START = 100
STREAM = StreamConfig(scale_frames=WINDOW, window=WINDOW, history_frames=0)
LAYOUT = CacheLayout.window_alone(STREAM, P, X)
SPAN = Span(0, START, P, LAYOUT.pages)


def seen_frames(groups: tuple[VisibleRanges, ...], pages: dict[int, int]) -> list[set[int]]:
    """For each group, the numbers of the frames whose pages it sees; `pages` has the frame of each page."""
    return [
        {pages[(slot - START) // P] for start, stop in group.ranges for slot in range(start, stop)} for group in groups
    ]


def test_in_the_first_step_a_row_sees_the_frames_before_it_and_a_slot_its_frame() -> None:
    """The last frame is stored after the attention, in place of the first: its tokens come with the queries."""
    plan = StreamWindow(LAYOUT).plan(WINDOW)
    rows, slots, pages = row_groups(SPAN, plan), slot_groups(SPAN, plan), {0: 0, 1: 1}
    assert LAYOUT.pages == WINDOW - 1
    assert seen_frames(rows, pages) == [set(), {0}, {0, 1}]
    assert [(group.rows, group.beside) for group in rows] == [(P + X * n, P + X * n) for n in (1, 2, 3)]
    assert seen_frames(slots, pages) == [{0}, {1}, set()] * WINDOW
    assert [(group.rows, group.beside) for group in slots] == [(X, X), (X, X), (X, P + X)] * WINDOW


@pytest.mark.parametrize("per_step", [1, 2, 5])
def test_later_rows_see_the_frames_before_them_and_their_slots_are_ordered_by_time(per_step: int) -> None:
    """No frame is stored where a frame of the same step still reads another one, but for the step's last frame."""
    layout = replace(LAYOUT, frames_per_step=per_step)
    plan = StreamWindow(layout).plan(WINDOW)
    pages = {frame.slot // P: frame.number for frame in plan.frames}
    for _ in range(9):
        plan = plan.after.plan(per_step)
        pages |= {frame.slot // P: frame.number for frame in plan.frames[:-1]}
        windows = [list(range(frame.number - WINDOW + 1, frame.number + 1)) for frame in plan.frames]
        assert seen_frames(row_groups(SPAN, plan), pages) == [set(window[:-1]) for window in windows]
        slots = [{member} for window in windows for member in window]
        slots[-1] = set()
        assert seen_frames(slot_groups(SPAN, plan), pages) == slots
        assert [frame.later for frame in plan.frames] == [frame.number - WINDOW for frame in plan.frames]
        pages[plan.frames[-1].slot // P] = plan.frames[-1].number
        kept = {pages[slot // P] for start, stop in plan.after.kept for slot in range(start, stop)}
        assert kept == set(range(plan.after.committed - WINDOW + 1, plan.after.committed))


def test_a_window_grows_after_a_first_step_of_one_frame() -> None:
    window, lengths = StreamWindow(LAYOUT).plan(1).after, []
    for _ in range(4):
        plan = window.plan(1)
        lengths.append(len(plan.frames[0].window))
        window = plan.after
    assert lengths == [2, 3, 3, 3]


@pytest.mark.parametrize("setting", ["scale_frames", "keyframe_interval", "history_frames"])
def test_settings_that_such_a_network_cannot_follow_are_refused(setting: str) -> None:
    settings: dict[str, Any] = {"scale_frames": WINDOW, "window": WINDOW, "history_frames": 0} | {setting: 2}
    with pytest.raises(ValueError, match=f"{setting} must be"):
        CacheLayout.window_alone(replace(StreamConfig(), **settings), P, X)


def test_the_dense_backend_sees_tokens_beside_the_slots() -> None:
    pool, draw = new_pool(), torch.Generator().manual_seed(1)
    pool.allocate(LAYOUT)
    pool.layer(0).copy_(torch.randn(pool.layer(0).shape, generator=draw))
    groups = (VisibleRanges(3, ((0, 5), (10, 15)), P, 2), VisibleRanges(2, ((5, 10),), P, 1))
    query, key, value = (torch.randn(count, H, D, generator=draw) for count in (5, 3, 3))
    found = DenseBackend().plan(pool, groups)(0, query, (key, value))
    cached = pool.layer(0)
    first = torch.cat((cached[:, :5], cached[:, 10:], torch.stack((key, value))[:, :2]), dim=1)
    second = torch.cat((cached[:, 5:10], torch.stack((key, value))[:, 2:]), dim=1)
    expected = torch.cat((attend_all(query[:3], *first.unbind(0)), attend_all(query[3:], *second.unbind(0))))
    assert torch.equal(found, expected)


def test_pages_cannot_represent_tokens_beside_the_slots() -> None:
    pool = new_pool()
    pool.allocate(LAYOUT)
    with pytest.raises(ValueError, match="cannot represent"):
        PagedBackend().plan(pool, (VisibleRanges(P, ((0, P),), P, 1),))
