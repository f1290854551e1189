"""`retinad extract`: a recording's features as files, by the service's own model, stream and capture process.

Three things run beside each other, with little waiting between them: the capture process decodes, the worker thread
runs the model, a thread writes shards. A killed job goes on from the last memory that was kept: `Engine.save_state`
writes it at a frame's boundary, and the index that names it names the shards up to that frame only. To run the frames
before once more would need no file, but without epochs that is the whole recording, and it would be the right memory
only if nothing had made the stream begin anew. A memory may take gigabytes, so it is kept at intervals, not with each
shard: what was done since is done again, to the same numbers.
"""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream

from retinad.pipeline.capture.camera import Camera, CameraState, CameraStatus
from retinad.pipeline.capture.capture import probe
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.open import open_engine
from retinad.pipeline.engine.prefetch import Prefetcher
from retinad.pipeline.errors import SourceError, StateError
from retinad.pipeline.frame_queue import FrameCounters, FrameQueue
from retinad.pipeline.frames import Flag, Frame, Outcome, Size
from retinad.pipeline.sources.reader import SourceInfo
from retinad.pipeline.sources.redact import mask
from retinad.pipeline.worker import Worker

from ..config.keys import error_text
from ..errors import only_error
from ..exit_codes import ExitCode, JobError
from .index import Index, Resume
from .names import picture_names
from .output import Output, find_index
from .progress import Reporter
from .request import CAMERA, Extraction, check_finished, choose_run

_WRITE_BEHIND = 32
"""Frames whose features wait to be written at most: a shard is written at once, and the model runs on meanwhile."""

_NAMED = 20
"""Frames without features that are named at the end, at most; the index has all."""

_SAVE_SHARE = 20
"""Keeping the memory takes at most one part in so many of the time."""


@dataclass(frozen=True, slots=True, eq=False)
class _Done:
    # What goes to the writing thread: a step's outcomes, then perhaps the memory after it.
    outcomes: Sequence[Outcome]
    resume: Resume | None = None


async def extract(wanted: Extraction, reporter: Reporter, version: str) -> ExitCode:
    """Extract features until the recording ends, or until SIGINT or SIGTERM; a second one ends the process at once.

    Returns:
        OK, or INCOMPLETE if it was stopped: the same call goes on.

    Raises:
        JobError: the recording cannot be read, or the folder cannot be written.
        ModelError: the model cannot be loaded.
        DeviceError: the device failed.
    """
    job = _Job(wanted, reporter, version)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(job.receive_signals, name="signals")
            code = await job.run()
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise only_error(group) from None
    return code


class _Job:
    def __init__(self, wanted: Extraction, reporter: Reporter, version: str) -> None:
        self._wanted = wanted
        self._reporter = reporter
        self._version = version
        self._loading = anyio.CancelScope()
        self._stopped = False
        self._ended: CameraStatus | None = None
        self._news = anyio.Event()
        self._next_seq = 0
        self._seen_seq = -1
        self._named = False

    async def receive_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                if self._stopped:
                    os._exit(128 + number)
                self._reporter.say("stopping after this step")
                self._stopped = True
                self._loading.cancel()
                self._wake()

    async def run(self) -> ExitCode:
        before = find_index(self._wanted.out)
        if before is not None and before.complete:
            check = partial(check_finished, self._wanted, before)
            await anyio.to_thread.run_sync(check, abandon_on_cancel=True)
            self._reporter.say(f"{self._wanted.out} is complete: {before.frames} frames")
            return ExitCode.OK
        async with AsyncExitStack() as stack:
            with self._loading:
                info = await self._probe()
                self._reporter.say(f"loading {self._wanted.model.name} on {self._wanted.model.device}")
                worker = await stack.enter_async_context(Worker(lambda: open_engine(self._wanted.model)))
                output = await self._open_output(worker, before, (info.width, info.height))
                stack.callback(output.close)
            if self._stopped:
                self._reporter.say(f"stopped before the first step: {self._left(before.frames if before else 0)}")
                return ExitCode.INCOMPLETE
            if output.index.resume is not None:
                await self._go_on(worker, output.index.resume)
            return await self._extract(worker, output, info.frame_count)

    async def _probe(self) -> SourceInfo:
        try:
            live = self._wanted.is_live
        except SourceError as error:
            raise JobError(ExitCode.NO_INPUT, f"{error.fault}: {error}") from None
        if live:
            raise JobError(ExitCode.USAGE, self._no_end())
        info = await probe(self._wanted.camera(self._wanted.stream))
        if isinstance(info, SourceError):
            raise JobError(ExitCode.NO_INPUT, self._masked(f"{info.fault}: {info}"))
        if info.live or not info.finite:
            raise JobError(ExitCode.USAGE, self._no_end())
        return info

    def _no_end(self) -> str:
        return self._masked(f"{self._wanted.source} has no end: `retinad run` is for such, this takes recordings")

    async def _open_output(self, worker: Worker[Engine], before: Index | None, size: Size) -> Output:
        wanted = self._wanted
        model = await worker.run(lambda engine: engine.description)
        run_frames = await worker.run(lambda engine: choose_run(wanted, size, before))
        settings = wanted.settings(model.weights, run_frames)
        arguments = (wanted.out, before, settings, model.mixers, self._version, wanted.shard_frames)
        output = await anyio.to_thread.run_sync(Output.open, *arguments)
        await worker.run(lambda engine: engine.open_stream(CAMERA, settings.stream, settings.resize))
        return output

    async def _go_on(self, worker: Worker[Engine], resume: Resume) -> None:
        path = self._wanted.out / resume.state
        try:
            await worker.run(lambda engine: engine.load_state(CAMERA, path))
        except StateError as error:
            advice = f"remove {self._wanted.out} to begin anew"
            raise JobError(ExitCode.CANNOT_CREATE, f"it cannot go on: {error_text(error)}; {advice}") from error
        self._next_seq = resume.source_seq
        self._reporter.say(f"going on with frame {resume.source_seq}")

    async def _extract(self, worker: Worker[Engine], output: Output, total: int | None) -> ExitCode:
        config = self._wanted.camera(output.index.settings.stream)
        queue = FrameQueue(config.mode, config.waiting_frames, config.frames_per_step, FrameCounters(), self._wake, 0)
        camera = Camera(config, queue, partial(self._see, output), on_log=self._reporter.hear)
        send, receive = anyio.create_memory_object_stream[_Done](max(1, _WRITE_BEHIND // config.frames_per_step))
        self._reporter.begin(output.frames)
        async with anyio.create_task_group() as writing:
            writing.start_soon(self._write, receive, output, total, name="write")
            async with anyio.create_task_group() as reading, send:
                reading.start_soon(self._capture, camera, name="capture")
                with suppress(anyio.BrokenResourceError):  # the writing has failed, which its group tells
                    await self._run_steps(worker, queue, send, output)
                reading.cancel_scope.cancel()
        return await self._finish(output, queue)

    def _see(self, output: Output, status: CameraStatus) -> None:
        if status.state is CameraState.RUNNING and status.info is not None and not self._named:
            self._named = True  # before the first frame is in the queue
            output.files = picture_names(self._wanted.source, status.info.frame_count)

    async def _capture(self, camera: Camera) -> None:
        self._ended = await camera.run()
        self._wake()

    async def _run_steps(
        self,
        worker: Worker[Engine],
        queue: FrameQueue,
        send: ObjectSendStream[_Done],
        output: Output,
    ) -> None:
        ahead = Prefetcher(partial(worker.on_loop, partial(queue.peek, queue.frames_per_step)))
        kept_at, pause_s = time.monotonic(), self._wanted.save_every_s
        while frames := await self._gather(queue):
            self._next_seq = frames[-1].stamp.source_seq + 1
            step = partial(_step, ahead, frames)
            del frames
            await send.send(_Done(await worker.run(step)))
            del step  # its frames go back to the capture process
            if time.monotonic() - kept_at >= pause_s:
                began_at = time.monotonic()
                await self._keep(worker, send, output)
                kept_at = time.monotonic()
                pause_s = max(self._wanted.save_every_s, _SAVE_SHARE * (kept_at - began_at))
        if self._is_at_its_end:
            await send.send(_Done(await worker.run(lambda engine: engine.flush(CAMERA))))
        else:
            await self._keep(worker, send, output)

    @property
    def _is_at_its_end(self) -> bool:
        return not self._stopped and self._ended is not None and self._ended.state is CameraState.ENDED

    async def _gather(self, queue: FrameQueue) -> list[Frame]:
        """The next run of frames; fewer at the recording's end; none where the job is over."""
        frames: list[Frame] = []
        while len(frames) < queue.frames_per_step:
            if self._stopped:
                return []
            frame = queue.take_nowait()
            if frame is None:
                if self._ended is not None:
                    break
                self._news = anyio.Event()
                await self._news.wait()
            else:
                self._seen_seq = frame.stamp.source_seq
                if self._seen_seq >= self._next_seq:
                    frames.append(frame)
            del frame
        if not frames and self._is_at_its_end and self._seen_seq + 1 < self._next_seq:
            raise JobError(ExitCode.NO_INPUT, f"the recording had more than {self._next_seq} frames before, now fewer")
        return frames

    async def _keep(self, worker: Worker[Engine], send: ObjectSendStream[_Done], output: Output) -> None:
        """Keep the stream's memory, unless it has none yet or anew: then a job goes on from the one before."""
        path = output.state_path(self._next_seq)
        try:
            kept = await worker.run(partial(_save, path))
        except StateError as error:
            raise JobError(ExitCode.IO_ERROR, f"the memory cannot be kept: {error}") from error
        if kept:
            await send.send(_Done((), Resume(self._next_seq, path.name)))

    async def _write(self, receive: ObjectReceiveStream[_Done], output: Output, total: int | None) -> None:
        async with receive:
            async for done in receive:
                await anyio.to_thread.run_sync(_write, output, done)
                del done
                self._reporter.update(output.frames, total)

    async def _finish(self, output: Output, queue: FrameQueue) -> ExitCode:
        ended = self._ended
        self._reporter.end()
        if self._is_at_its_end:
            assert ended is not None
            await anyio.to_thread.run_sync(output.finish, queue.counters.captured)
            return self._summary(output, ended)
        safe = self._left(output.index.frames)
        if self._stopped:
            self._reporter.say(f"stopped: {safe}")
            return ExitCode.INCOMPLETE
        assert ended is not None
        raise JobError(ExitCode.NO_INPUT, f"the recording failed: {ended.fault}: {ended.reason}. {safe}")

    def _summary(self, output: Output, ended: CameraStatus) -> ExitCode:
        index = output.index
        if ended.reason is not None:
            self._reporter.say(f"note: {self._masked(ended.reason)}")
        for failure in index.failures[:_NAMED]:
            self._reporter.say(f"frame {failure.source_seq} gave no features: {failure.reason}")
        self._reporter.say(
            f"{self._wanted.out} is complete: {index.frames} frames; {index.unreadable} unreadable, "
            f"{len(index.failures)} failed; {self._reporter.frames_per_s(index.frames):.1f} frames/s"
        )
        spoilt = sum(Flag.NAN in frame.flags for shard in index.shards for frame in shard.frames)
        if spoilt:
            self._reporter.say(f"{spoilt} of them have numbers that are not finite (flag {Flag.NAN})")
        if self._wanted.model.random_weights:
            self._reporter.say("the weights are random: the features mean nothing (set model.checkpoint)")
        return ExitCode.OK if index.frames else ExitCode.NO_INPUT

    def _left(self, frames: int) -> str:
        if not frames:
            return "no features were written"
        return f"{frames} frames are in {self._wanted.out}; the same command goes on from there"

    def _masked(self, text: str) -> str:
        return mask(text, self._wanted.source)

    def _wake(self) -> None:
        self._news.set()


def _step(ahead: Prefetcher, frames: list[Frame], engine: Engine) -> list[Outcome]:
    return [outcome for part in ahead.step(engine, frames) for outcome in part.outcomes]


def _save(path: Path, engine: Engine) -> bool:
    (stream,) = engine.statistics().streams
    if stream.waiting or not stream.keyframes:
        return False
    engine.save_state(CAMERA, path)
    return True


def _write(output: Output, done: _Done) -> None:
    output.add(done.outcomes)
    if done.resume is not None:
        output.checkpoint(done.resume)
