"""The loop that moves frames: queues -> worker -> delivery. Nothing else takes frames or runs steps."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from .delivery import Delivery
from .engine.prefetch import Prefetcher, StepEngine
from .frame_queue import FrameQueues
from .frames import Features, Frame, Outcome
from .worker import Worker

Stepping = TypeVar("Stepping", bound=StepEngine)


class FlushEngine(Protocol):
    """The method of an `Engine` that `flush` uses."""

    def flush(self, camera: str) -> Sequence[Outcome]:
        """Run a stream's waiting frames."""


Flushing = TypeVar("Flushing", bound=FlushEngine)


class ConnectionFlushEngine(Protocol):
    """The method of an `Engine` that `flush_connection` uses."""

    def flush_connection(self, camera: str, stream_epoch: int) -> Sequence[Outcome]:
        """Run the waiting frames of one connection."""


ConnectionFlushing = TypeVar("ConnectionFlushing", bound=ConnectionFlushEngine)


async def pump(queues: FrameQueues, worker: Worker[Stepping], delivery: Delivery, max_batch: int) -> None:
    """Run steps forever, each of at most `max_batch` frames: one from each camera, or several from a lossless one.

    While frames wait, the device is never idle: their images are preprocessed before the current step ends, and the
    next step is started before the last records of the current one are published. If a step needs several forward
    passes, as when streams begin or image sizes differ, the records of each pass are published as soon as it is over.

    Raises:
        DeviceError: the device failed; no results of that forward pass or of later ones were published.
    """

    def hand_over(outcomes: list[Outcome], model_done_ns: int) -> None:
        worker.on_loop(partial(delivery.deliver, outcomes, model_done_ns))

    prefetcher = Prefetcher(partial(worker.on_loop, partial(queues.peek, max_batch)))
    done: tuple[list[Outcome], int] | None = None
    while True:
        frames = await queues.take(max_batch) if done is None else queues.take_nowait(max_batch)
        step = worker.start(partial(_step, prefetcher, frames, hand_over)) if frames else None
        del frames  # their pixels go back to the capture processes
        if done is not None:
            delivery.deliver(*done)
        done = None if step is None else await step()


async def flush(camera: str, worker: Worker[Flushing], delivery: Delivery) -> None:
    """Run the frames of a stream that still wait in the engine, once no more arrive, and publish the results."""
    outcomes, model_done_ns = await worker.run(partial(_flush, camera))
    delivery.deliver(outcomes, model_done_ns)


async def flush_connection(
    camera: str, stream_epoch: int, worker: Worker[ConnectionFlushing], delivery: Delivery
) -> None:
    """Run and publish the waiting frames of a closed connection, unless a later connection has sent frames."""
    outcomes, model_done_ns = await worker.run(partial(_flush_connection, camera, stream_epoch))
    delivery.deliver(outcomes, model_done_ns)


def _step(
    prefetcher: Prefetcher, frames: list[Frame], hand_over: Callable[[list[Outcome], int], None], engine: StepEngine
) -> tuple[list[Outcome], int]:
    """Run a step: hand over the outcomes of each forward pass, except those of the last one, which are returned.

    Handing over waits for the event loop, during which the device is idle. So outcomes that are all failures are kept
    and handed over or returned with the next features.
    """
    outcomes, done_ns = list[Outcome](), time.monotonic_ns()
    for result in prefetcher.step(engine, frames):
        outcomes, done_ns = outcomes + result.outcomes, time.monotonic_ns()
        if not result.last and any(isinstance(outcome, Features) for outcome in outcomes):
            hand_over(outcomes, done_ns)
            outcomes = []
    return outcomes, done_ns


def _flush(camera: str, engine: FlushEngine) -> tuple[Sequence[Outcome], int]:
    return engine.flush(camera), time.monotonic_ns()


def _flush_connection(camera: str, stream_epoch: int, engine: ConnectionFlushEngine) -> tuple[Sequence[Outcome], int]:
    return engine.flush_connection(camera, stream_epoch), time.monotonic_ns()
