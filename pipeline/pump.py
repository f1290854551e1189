"""The one loop that moves frames: queues -> worker -> delivery. Nothing else takes frames or runs steps."""

import time
from collections.abc import Callable
from functools import partial

from .delivery import Delivery
from .engine.engine import Engine
from .engine.prefetch import Prefetcher
from .frame_queue import FrameQueues
from .frames import Features, Frame, Outcome
from .worker import Worker


async def pump(queues: FrameQueues, worker: Worker[Engine], delivery: Delivery, max_batch: int) -> None:
    """Run steps for ever: a frame of each camera, or a run of frames of a lossless one, at most `max_batch` frames.

    Where frames wait, the device need not: their pictures are fitted before the step ends, and the next step begins
    before the last records of this one are published. Where a step takes several forwards, as when streams begin or
    pictures differ in size, records leave as soon as theirs is over.

    Raises:
        DeviceError: the device failed; nothing of that forward, nor of those after it, was published.
    """

    def hand_over(outcomes: list[Outcome], model_done_ns: int) -> None:
        worker.on_loop(partial(delivery.deliver, outcomes, model_done_ns))

    ahead = Prefetcher(partial(worker.on_loop, partial(queues.peek, max_batch)))
    done: tuple[list[Outcome], int] | None = None
    while True:
        frames = await queues.take(max_batch) if done is None else queues.take_nowait(max_batch)
        step = worker.start(partial(_step, ahead, frames, hand_over)) if frames else None
        del frames  # their pixels go back to the capture processes
        if done is not None:
            delivery.deliver(*done)
        done = None if step is None else await step()


async def flush(camera: str, worker: Worker[Engine], delivery: Delivery) -> None:
    """Publish what the engine still holds of a stream that gets no more frames."""
    outcomes, model_done_ns = await worker.run(partial(_flush, camera))
    delivery.deliver(outcomes, model_done_ns)


def _step(
    ahead: Prefetcher, frames: list[Frame], hand_over: Callable[[list[Outcome], int], None], engine: Engine
) -> tuple[list[Outcome], int]:
    """Hand over what each forward of a step gave, but for the last one, whose outcomes are returned.

    The event loop is waited for, and the device with it: so not for failures alone.
    """
    outcomes, done_ns = list[Outcome](), time.monotonic_ns()
    for part in ahead.step(engine, frames):
        outcomes, done_ns = outcomes + part.outcomes, time.monotonic_ns()
        if not part.last and any(isinstance(outcome, Features) for outcome in outcomes):
            hand_over(outcomes, done_ns)
            outcomes = []
    return outcomes, done_ns


def _flush(camera: str, engine: Engine) -> tuple[list[Outcome], int]:
    return engine.flush(camera), time.monotonic_ns()
