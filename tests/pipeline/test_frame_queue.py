"""The queues: bounded, fair, and with counters that always add up."""

import random
import time

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from retinad.pipeline.config import CaptureMode
from retinad.pipeline.frame_queue import FrameQueue, FrameQueues, Pause
from retinad.pipeline.frames import Frame, FrameStamp

pytestmark = pytest.mark.anyio


def frame(number: int, camera: str = "a") -> Frame:
    return Frame(FrameStamp(camera, 0, number, 0, 0, None, (1, 1)), np.zeros((1, 1, 3), np.uint8))


def adds_up(queue: FrameQueue, in_model: int = 0) -> bool:
    return queue.counters.in_flight == len(queue) + in_model


async def test_a_full_live_queue_keeps_the_newest_and_counts_the_rest() -> None:
    queues = FrameQueues()
    queue = queues.open("a", CaptureMode.LIVE, 2)
    for number in range(5):
        await queue.put(frame(number))
    assert queue.counters.dropped == 3
    assert [(await queues.take(8))[0].stamp.source_seq for _ in range(2)] == [3, 4]
    assert adds_up(queue, in_model=2)


async def test_a_live_queue_that_shrinks_drops_its_oldest_and_one_that_grows_takes_more() -> None:
    queues = FrameQueues()
    queue = queues.open("a", CaptureMode.LIVE, 3)
    for number in range(3):
        await queue.put(frame(number))
    queue.resize(1)
    assert [one.stamp.source_seq for one in queue.peek(8)] == [2]
    queue.resize(2)
    await queue.put(frame(3))
    assert (len(queue), queue.counters.dropped) == (2, 2)
    assert adds_up(queue)


async def test_a_lossless_queue_that_shrinks_loses_nothing_and_lets_a_waiting_source_on_when_it_grows() -> None:
    queues = FrameQueues()
    queue = queues.open("a", CaptureMode.LOSSLESS, 2)
    for number in range(2):
        await queue.put(frame(number))
    queue.resize(1)
    assert (len(queue), queue.would_wait) == (2, True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.put, frame(2))
        await anyio.lowlevel.checkpoint()
        queue.resize(3)
    assert (len(queue), queue.counters.dropped) == (3, 0)


async def test_a_full_lossless_queue_makes_the_source_wait() -> None:
    queues = FrameQueues()
    queue = queues.open("a", CaptureMode.LOSSLESS, 2)
    seen: list[int] = []

    async def produce() -> None:
        for number in range(50):
            await queue.put(frame(number))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(produce)
        while len(seen) < 50:
            assert len(queue) <= 2
            (taken,) = await queues.take(8)
            seen.append(taken.stamp.source_seq)
            queue.mark_published()
    assert seen == list(range(50))
    assert queue.counters.dropped == 0
    assert queue.counters.in_flight == 0


async def test_a_source_cancelled_while_it_waits_has_its_frame_counted_as_dropped() -> None:
    queue = FrameQueues().open("a", CaptureMode.LOSSLESS, 1)
    await queue.put(frame(0))
    with anyio.move_on_after(0.01):
        await queue.put(frame(1))
    assert (queue.counters.captured, queue.counters.dropped) == (2, 1)
    assert adds_up(queue)


async def test_a_step_takes_one_frame_of_each_camera() -> None:
    queues = FrameQueues()
    for camera in "abc":
        queue = queues.open(camera, CaptureMode.LIVE, 4)
        for number in range(3):
            await queue.put(frame(number, camera))
    assert [taken.stamp.camera for taken in await queues.take(8)] == ["a", "b", "c"]


async def test_a_small_batch_serves_every_camera_in_turn() -> None:
    queues = FrameQueues()
    for camera in "abcde":
        queue = queues.open(camera, CaptureMode.LIVE, 9)
        for number in range(6):
            await queue.put(frame(number, camera))
    served = [taken.stamp.camera for _ in range(10) for taken in await queues.take(2)]
    assert {camera: served.count(camera) for camera in "abcde"} == dict.fromkeys("abcde", 4)


async def test_settled_waits_for_the_last_frame() -> None:
    queues = FrameQueues()
    queue = queues.open("a", CaptureMode.LIVE, 2)
    await queue.put(frame(0))
    await queues.take(1)
    with anyio.move_on_after(0.01) as scope:
        await queue.settled()
    assert scope.cancelled_caught
    queue.mark_failed()
    with anyio.fail_after(1):
        await queue.settled()


async def test_closing_drops_waiting_frames() -> None:
    queues = FrameQueues()
    queue = queues.open("a", CaptureMode.LIVE, 2)
    await queue.put(frame(0))
    queues.close("a")
    queues.close("a")
    assert queue.counters.dropped == 1
    assert "a" not in queues


@pytest.mark.parametrize("seed", range(20))
async def test_counters_add_up_under_any_schedule(seed: int) -> None:
    choose = random.Random(seed)
    queues = FrameQueues()
    queue = queues.open("a", choose.choice(list(CaptureMode)), choose.randint(1, 4))
    in_model = 0

    async def produce() -> None:
        for number in range(200):
            await queue.put(frame(number))
            if choose.random() < 0.5:
                await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(produce)
        while queue.counters.captured < 200 or len(queue):
            with anyio.move_on_after(0.05):
                in_model += len(await queues.take(1))
            while in_model and choose.random() < 0.6:
                choose.choice((queue.mark_published, queue.mark_failed))()
                in_model -= 1
    assert adds_up(queue, in_model)
    assert queue.counters.captured == 200


async def test_several_frames_of_a_lossless_camera_are_taken_if_no_other_camera_needs_the_room() -> None:
    queues = FrameQueues()
    for camera, mode in (("a", CaptureMode.LOSSLESS), ("b", CaptureMode.LIVE), ("c", CaptureMode.LOSSLESS)):
        queue = queues.open(camera, mode, 4, frames_per_step={"a": 4, "b": 1, "c": 3}[camera])
        for number in range(4 if camera == "a" else 2):
            await queue.put(frame(number, camera))
    taken = [(one.stamp.camera, one.stamp.source_seq) for one in await queues.take(5)]
    assert taken == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("c", 1)]
    taken = [(one.stamp.camera, one.stamp.source_seq) for one in await queues.take(5)]
    assert taken == [("a", 2), ("b", 1), ("a", 3)]


@pytest.mark.parametrize("seed", range(8))
async def test_peek_returns_the_frames_that_are_taken_next_without_taking_them(seed: int) -> None:
    choose = random.Random(seed)
    queues = FrameQueues()
    opened = {}
    for camera in "abcd":
        mode = choose.choice(list(CaptureMode))
        opened[camera] = queues.open(camera, mode, 6, frames_per_step=choose.randint(1, 4))
    assert queues.peek(8) == []
    for number in range(100):
        camera = choose.choice("abcd")
        if len(opened[camera]) < 6:
            await opened[camera].put(frame(number, camera))
        most = choose.randint(1, 8)
        counts = [len(queue) for queue in opened.values()]
        seen = queues.peek(most)
        assert [len(queue) for queue in opened.values()] == counts
        if choose.random() < 0.4:
            taken = queues.take_nowait(most)
            assert set(map(id, seen)) == set(map(id, taken))
            assert len(seen) == len(taken)
            assert [one.stamp.source_seq for one in taken if one.stamp.camera == "a"] == sorted(
                one.stamp.source_seq for one in seen if one.stamp.camera == "a"
            )


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def aged(number: int, age_s: float) -> Frame:
    now_ns = time.monotonic_ns()
    stamp = FrameStamp("a", 0, number, 0, now_ns - round(age_s * 1e9), None, (1, 1))
    return Frame(stamp, np.zeros((1, 1, 3), np.uint8))


@pytest.mark.parametrize("noticed_by", ["a take", "the next beat"])
async def test_after_a_pause_old_frames_of_a_live_camera_are_dropped_also_those_that_arrive_later(
    noticed_by: str,
) -> None:
    """The process was stopped, or the machine suspended: what the camera saw before is no news."""
    clock = Clock()
    queues = FrameQueues(clock)
    queue = queues.open("a", CaptureMode.LIVE, 4)
    queues.beat()
    await queue.put(aged(0, 12))
    await queue.put(aged(1, 0.1))
    clock.now_s += 12
    if noticed_by == "the next beat":
        queues.beat()
    assert [one.stamp.source_seq for one in queues.take_nowait(8)] == [1]
    await queue.put(aged(2, 11))
    await queue.put(aged(3, 0))
    assert [one.stamp.source_seq for one in queues.take_nowait(8)] == [3]
    assert (queue.counters.captured, queue.counters.dropped) == (4, 2)
    assert adds_up(queue, in_model=2)
    assert queues.take_pause() == Pause(12, 1)
    assert queues.take_pause() is None


async def test_a_lossless_camera_loses_nothing_in_a_pause() -> None:
    clock = Clock()
    queues = FrameQueues(clock)
    queue = queues.open("a", CaptureMode.LOSSLESS, 4)
    queues.beat()
    await queue.put(aged(0, 12))
    clock.now_s += 12
    assert [one.stamp.source_seq for one in queues.take_nowait(8)] == [0]
    assert queue.counters.dropped == 0


async def test_old_frames_are_taken_if_the_loop_has_run_all_the_time() -> None:
    """A slow model lets frames wait for long; they are the newest that there are."""
    clock = Clock()
    queues = FrameQueues(clock)
    queue = queues.open("a", CaptureMode.LIVE, 4)
    await queue.put(aged(0, 12))
    for _ in range(120):
        queues.beat()
        clock.now_s += 0.1
    assert [one.stamp.source_seq for one in queues.take_nowait(8)] == [0]
    assert queues.take_pause() is None
