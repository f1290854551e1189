"""Writes results in a thread while the model computes the next ones. A bounded number of frames wait to be written."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

from retinad.pipeline.frames import Outcome

from .index import Resume
from .output import OutputFolder

_QUEUE_FRAMES = 32
"""Maximum number of frames whose features wait to be written. The model runs on while a whole shard is written."""


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """Either the results of a step or a checkpoint.

    Attributes:
        outcomes: features and failures; empty for a checkpoint.
        resume: where to resume once all earlier results are written; None for the results of a step.
    """

    outcomes: Sequence[Outcome]
    resume: Resume | None = None


class WriteBehind:
    """The queue between the model and the writing thread.

    Args:
        output: the folder that the thread writes to; nothing else may write to it until `run` returns.
        frames_per_step: maximum number of frames whose features are passed to one `put`.
        on_written: called after each write, on the event loop.
    """

    def __init__(self, output: OutputFolder, frames_per_step: int, on_written: Callable[[], None]) -> None:
        self._output = output
        self._on_written = on_written
        size = max(1, _QUEUE_FRAMES // frames_per_step)
        self._send, self._receive = anyio.create_memory_object_stream[Results](size)

    async def run(self) -> None:
        """Write results until `sending` is over and the queue is empty.

        Raises:
            JobError: the folder cannot be written.
        """
        async with self._receive:
            async for results in self._receive:
                await anyio.to_thread.run_sync(write, self._output, results)
                del results
                self._on_written()

    @contextmanager
    def sending(self) -> Iterator[None]:
        """A context in which results may be queued. At its end the queue is closed."""
        with self._send:
            yield

    async def put(self, results: Results) -> None:
        """Queue results; waits while the queue is full.

        Raises:
            anyio.BrokenResourceError: writing has failed.
        """
        await self._send.send(results)


def write(output: OutputFolder, results: Results) -> None:
    """Write the results of one step, or a checkpoint."""
    output.add(results.outcomes)
    if results.resume is not None:
        output.checkpoint(results.resume)
