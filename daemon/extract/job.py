"""`retinad extract`: writes a recording's features to files, using the service's model, stream and capture process.

Three things run at the same time and seldom wait for each other: the capture process decodes frames, the worker thread
runs the model, and another thread writes shards.
"""

import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial

import anyio

from retinad.pipeline.engine import open as engine_open
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.errors import StateError
from retinad.pipeline.frames import Size
from retinad.pipeline.sources.reader import SourceInfo
from retinad.pipeline.sources.redact import mask
from retinad.pipeline.worker import Worker

from ..config.directories import writing_problem
from ..config.keys import error_text
from ..errors import only_error
from ..exit_codes import ExitCode, JobError
from ..service.signals import EchoFilter
from .index import Index, Resume
from .names import image_names
from .output import OutputFolder, find_index, others_note
from .progress import Reporter
from .recording import RecordingReader, probe_recording
from .request import CAMERA, Extraction, check_finished, choose_run
from .steps import StepLoop
from .summary import RANDOM_WEIGHTS, remaining_line, summary_lines, weights_note_line
from .write_behind import WriteBehind


async def extract(wanted: Extraction, reporter: Reporter, version: str) -> ExitCode:
    """Extract features until the recording ends, or until SIGINT or SIGTERM; a second one ends the process at once.

    Returns:
        OK, or INCOMPLETE if the job was stopped; the same call then continues it.

    Raises:
        JobError: the recording cannot be read, or the folder cannot be written.
        ModelError: the model cannot be loaded.
        DeviceError: the device failed.
    """
    interrupt = _Interrupt(reporter)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(interrupt.receive, name="signals")
            code = await _Job(wanted, reporter, version, interrupt).run()
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise only_error(group) from None
    return code


class _Interrupt:
    # SIGINT and SIGTERM: the first asks the job to stop, the second ends the process.
    def __init__(self, reporter: Reporter) -> None:
        self.stopped = False
        self._stop: Callable[[], None] = lambda: None
        self._reporter = reporter
        self._echoes = EchoFilter()

    def stop_with(self, stop: Callable[[], None]) -> None:
        """Set the function that stops the job from now on. It is called at once if a signal has already arrived."""
        self._stop = stop
        if self.stopped:
            stop()

    async def receive(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                if self._echoes.is_echo(number):
                    continue
                if self.stopped:
                    os._exit(128 + number)
                self._reporter.say("stopping after this step")
                self.stopped = True
                self._stop()


class _Job:
    def __init__(self, wanted: Extraction, reporter: Reporter, version: str, interrupt: _Interrupt) -> None:
        self._wanted = wanted
        self._reporter = reporter
        self._version = version
        self._interrupt = interrupt

    async def run(self) -> ExitCode:
        before = find_index(self._wanted.out)
        if before is not None and before.complete:
            check = partial(check_finished, self._wanted, before)
            await anyio.to_thread.run_sync(check, abandon_on_cancel=True)
            self._reporter.say(f"{self._wanted.out} is complete: {before.frames} frames")
            return ExitCode.OK
        if (problem := writing_problem(self._wanted.out)) is not None:  # before a model is loaded for nothing
            raise JobError(ExitCode.CANNOT_CREATE, f"{self._wanted.out} cannot be written: {problem}")
        if (note := others_note(self._wanted.out)) is not None:
            self._reporter.say(f"warning: {note}")
        async with AsyncExitStack() as stack:
            with anyio.CancelScope() as loading:
                self._interrupt.stop_with(loading.cancel)
                info, worker, output = await self._open(stack, before)
            if self._interrupt.stopped:
                frames = before.frames if before else 0
                self._reporter.say(f"stopped before the first step: {remaining_line(self._wanted.out, frames)}")
                return ExitCode.INCOMPLETE
            resume = output.index.resume
            if resume is not None:
                await self._load_state(worker, resume)
            return await self._extract(worker, output, info.frame_count, 0 if resume is None else resume.source_seq)

    async def _open(
        self, stack: AsyncExitStack, before: Index | None
    ) -> tuple[SourceInfo, Worker[Engine], OutputFolder]:
        model = self._wanted.model
        info = await probe_recording(self._wanted)
        self._reporter.say(f"loading {model.name} on {model.device}")
        worker = await stack.enter_async_context(Worker(lambda: engine_open.open_engine(model)))
        output = await self._open_output(worker, before, (info.width, info.height))
        stack.callback(output.close)
        return info, worker, output

    async def _open_output(self, worker: Worker[Engine], before: Index | None, size: Size) -> OutputFolder:
        wanted = self._wanted
        model = await worker.run(lambda engine: engine.description)
        if wanted.model.random_weights:
            self._reporter.say(RANDOM_WEIGHTS)
        if model.weights_note is not None:
            self._reporter.say(weights_note_line(model.weights_note))
        run_frames = await worker.run(lambda engine: choose_run(wanted, size, before))
        settings = wanted.settings(model.weights, run_frames)
        arguments = (wanted.out, before, settings, model.mixers, self._version, wanted.shard_frames)
        output = await anyio.to_thread.run_sync(OutputFolder.open, *arguments)
        await worker.run(lambda engine: engine.open_stream(CAMERA, settings.stream, settings.resize))
        return output

    async def _load_state(self, worker: Worker[Engine], resume: Resume) -> None:
        path = self._wanted.out / resume.state
        try:
            await worker.run(lambda engine: engine.load_state(CAMERA, path))
        except StateError as error:
            advice = f"remove {self._wanted.out} to start over"
            raise JobError(ExitCode.CANNOT_CREATE, f"cannot resume: {error_text(error)}; {advice}") from error
        self._reporter.say(f"resuming at frame {resume.source_seq}")

    async def _extract(
        self, worker: Worker[Engine], output: OutputFolder, total: int | None, next_seq: int
    ) -> ExitCode:
        def on_open(count: int | None) -> None:
            output.files = image_names(self._wanted.source, count)

        config = self._wanted.camera(output.index.settings.stream)
        reader = RecordingReader(config, next_seq, on_open, self._reporter.decoder_line)
        self._interrupt.stop_with(reader.stop)
        writer = WriteBehind(output, config.frames_per_step, lambda: self._reporter.update(output.frames, total))
        loop = StepLoop(worker, reader, writer, output, self._wanted.save_every_s)
        self._reporter.begin(output.frames)
        async with anyio.create_task_group() as writing:
            writing.start_soon(writer.run, name="write")
            async with anyio.create_task_group() as reading:
                with writer.sending():
                    reading.start_soon(reader.capture, name="capture")
                    with suppress(anyio.BrokenResourceError):  # writing failed: the outer task group raises the reason
                        await loop.run()
                    reading.cancel_scope.cancel()
        note = await worker.run(lambda engine: engine.description.weights_note)
        return await self._finish(output, reader, note)

    async def _finish(self, output: OutputFolder, reader: RecordingReader, weights_note: str | None) -> ExitCode:
        self._reporter.end()
        if reader.is_at_end:
            await anyio.to_thread.run_sync(output.finish, reader.queue.counters.captured)
            return self._summarize(output.index, reader, weights_note)
        remaining = remaining_line(self._wanted.out, output.index.frames)
        if self._interrupt.stopped:
            self._reporter.say(f"stopped: {remaining}")
            return ExitCode.INCOMPLETE
        ended = reader.ended
        assert ended is not None
        raise JobError(ExitCode.NO_INPUT, f"the recording failed: {ended.fault}: {ended.reason}. {remaining}")

    def _summarize(self, index: Index, reader: RecordingReader, weights_note: str | None) -> ExitCode:
        wanted, ended = self._wanted, reader.ended
        if ended is not None and ended.reason is not None:
            self._reporter.say(f"note: {mask(ended.reason, wanted.source)}")
        frames_per_s = self._reporter.frames_per_s(index.frames)
        random = wanted.model.random_weights
        for line in summary_lines(wanted.out, index, frames_per_s, random_weights=random, weights_note=weights_note):
            self._reporter.say(line)
        return ExitCode.OK if index.frames else ExitCode.NO_INPUT
