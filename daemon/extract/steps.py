"""The step loop of an extraction: runs frames through the model, and saves a checkpoint of the stream now and then.

A killed job resumes at its last checkpoint. `Engine.save_state` writes the stream's state before a certain frame to a
file, and the index that names this file names only shards with earlier frames. The state could also be recomputed from
earlier frames, without a file. But without epochs that means all earlier frames, and it would yield the same state only
if no failure had reset the stream. A state may take gigabytes, so it is saved at intervals and not with each shard:
frames after the last checkpoint are computed again, with the same results.
"""

import time
from functools import partial
from pathlib import Path

from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.prefetch import Prefetcher
from retinad.pipeline.errors import StateError
from retinad.pipeline.frames import Frame, Outcome
from retinad.pipeline.worker import Worker

from ..exit_codes import ExitCode, JobError
from .index import Resume
from .output import OutputFolder
from .recording import RecordingReader
from .request import CAMERA
from .write_behind import Results, WriteBehind

SAVE_SHARE = 20
"""Minimum interval between checkpoints, as a multiple of the duration of the last save. It limits the share of the time
that saving takes."""


class StepLoop:
    """Runs a recording through the model.

    Args:
        worker: owns the engine, in which the stream is open.
        reader: supplies the frames.
        writer: receives the results.
        output: chooses the paths of state files.
        save_every_s: minimum number of seconds between checkpoints.
    """

    def __init__(
        self,
        worker: Worker[Engine],
        reader: RecordingReader,
        writer: WriteBehind,
        output: OutputFolder,
        save_every_s: float,
    ) -> None:
        self._worker = worker
        self._reader = reader
        self._writer = writer
        self._output = output
        self._save_every_s = save_every_s

    async def run(self) -> None:
        """Run steps until the reader has no more frames. Then flush the stream at the recording's end, else save it.

        Raises:
            JobError: the state cannot be saved, or the recording has become shorter.
            DeviceError: the device failed.
            anyio.BrokenResourceError: writing has failed.
        """
        queue = self._reader.queue
        prefetcher = Prefetcher(partial(self._worker.on_loop, partial(queue.peek, queue.frames_per_step)))
        saved_at, pause_s = time.monotonic(), self._save_every_s
        while frames := await self._reader.gather():
            step = partial(run_step, prefetcher, frames)
            del frames
            await self._writer.put(Results(await self._worker.run(step)))
            del step  # the step's frames go back to the capture process
            if time.monotonic() - saved_at >= pause_s:
                began_at = time.monotonic()
                await self._checkpoint()
                saved_at = time.monotonic()
                pause_s = max(self._save_every_s, SAVE_SHARE * (saved_at - began_at))
        if self._reader.is_at_end:
            await self._writer.put(Results(await self._worker.run(lambda engine: engine.flush(CAMERA))))
        else:
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        """Save the stream. If it has no complete state at the moment, the previous checkpoint stays."""
        next_seq = self._reader.next_seq
        path = self._output.state_path(next_seq)
        try:
            saved = await self._worker.run(partial(_save, path))
        except StateError as error:
            raise JobError(ExitCode.IO_ERROR, f"cannot save the stream's state: {error}") from error
        if saved:
            await self._writer.put(Results((), Resume(next_seq, path.name)))


def run_step(prefetcher: Prefetcher, frames: list[Frame], engine: Engine) -> list[Outcome]:
    """Run one step and return its results. Call it in the worker's thread."""
    return [outcome for results in prefetcher.step(engine, frames) for outcome in results.outcomes]


def _save(path: Path, engine: Engine) -> bool:
    (stream,) = engine.statistics().streams
    if stream.waiting or not stream.keyframes:
        return False
    engine.save_state(CAMERA, path)
    return True
