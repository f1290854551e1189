"""The service: opens every part, runs them in one task group, and closes them in order. Shutdown is cancellation."""

import os
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup

from retinad.client.wire import ModelHeader
from retinad.pipeline.capture.camera import CameraState
from retinad.pipeline.delivery import Delivery
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.heads import largest_outputs
from retinad.pipeline.errors import DeviceError, ModelError
from retinad.pipeline.frame_queue import FrameQueues
from retinad.pipeline.publish.publisher import Publisher
from retinad.pipeline.pump import pump
from retinad.pipeline.worker import Worker

from ..config.load import ConfigError, ServiceConfig
from ..errors import only_error
from ..exit_codes import ExitCode
from ..kernel_cache import KernelCache
from .cameras import Cameras, MakeCamera
from .events import FailureLog, different_keys, log_reload, log_start
from .heartbeat import beat, end_when_hung, report
from .load import load_worker, make_engine
from .logged_camera import LoggedCamera
from .loop_lag import LoopLag
from .snapshots import KeptStates
from .startup_times import StartUp
from .status import Announcer, Description, model_header
from .systemd import Notifier

_BEAT_S = 0.05
_RELOAD_S = 10.0
"""Reading a config anew may take for ever, from a pipe or a dead file server; later reloads do not wait for that."""

_RELOAD_PAUSE_S = 0.5
"""Between reloads: what asks for one meanwhile gets the same one."""

_HELD_BACK = (signal.SIGHUP, signal.SIGUSR1)
"""Blocked by `__main__` until they are listened to, and again when they no longer are: they would end the process."""

_log = structlog.get_logger("retinad")


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Where the service meets the world; tests put something of their own there.

    Attributes:
        load_config: reads the config anew; raises ConfigError. May block for a moment: it runs in a thread.
        configure: applies what of a config lies outside the service: the log's level, the secrets to mask.
        versions: versions of retinad and of the libraries below it, by name.
        make_engine: loads the model and warms it up, in the worker's thread.
        make_camera: makes a camera's state machine.
        start_up: watches this start.
    """

    load_config: Callable[[], ServiceConfig]
    configure: Callable[[ServiceConfig], None]
    versions: Mapping[str, str]
    make_engine: Callable[[ServiceConfig], AbstractContextManager[Engine]] = make_engine
    make_camera: MakeCamera = LoggedCamera
    start_up: StartUp = field(default_factory=lambda: StartUp(KernelCache(None)))


async def serve(config: ServiceConfig, dependencies: Dependencies, notifier: Notifier) -> ExitCode:
    """Run until told to stop (SIGTERM, SIGINT) or, with `exit_when_done`, until every source has ended.

    SIGHUP reads the config again: cameras are added, removed or exchanged without disturbing the others; a config that
    is wrong changes nothing. SIGUSR1 ends the epochs of all streams, so that each begins a new one. A second SIGTERM or
    SIGINT ends the process at once.

    Returns:
        OK, or NO_INPUT if every source failed (`exit_when_done`).

    Raises:
        PublishError: an endpoint cannot be bound.
        ModelError: the model cannot be loaded or warmed up.
        DeviceError: the device failed.
    """
    try:
        return await _Service(config, dependencies, notifier).run()
    except BaseExceptionGroup as group:
        raise only_error(group) from None


class _Service:
    def __init__(self, config: ServiceConfig, dependencies: Dependencies, notifier: Notifier) -> None:
        self._config = config
        self._dependencies = dependencies
        self._notifier = notifier
        self._stop = anyio.Event()
        self._reload = anyio.Event()
        self._renewal = anyio.Event()
        self._lag = LoopLag(_BEAT_S)
        self._queues = FrameQueues()

    async def run(self) -> ExitCode:
        self._dependencies.start_up.enter()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._receive_signals, name="signals")
            code = await self._run_parts()
            tasks.cancel_scope.cancel()
        _log.info("stopped")
        return code

    async def _run_parts(self) -> ExitCode:
        outputs = largest_outputs(self._config.model)
        description = Description(outputs, self._dependencies.versions)
        with Publisher(
            self._config.publish,
            model=ModelHeader(name=self._config.model.name, weights="loading"),
            largest_message_bytes=sum(output.nbytes for output in outputs),
            describe=description,
            burst_messages=_most_at_once(self._config),
        ) as publisher:
            async with AsyncExitStack() as resources:
                worker = await self._load_model(resources)
                if worker is None:
                    return ExitCode.OK
                return await self._run_cameras(publisher, description, worker)

    async def _load_model(self, resources: AsyncExitStack) -> Worker[Engine] | None:
        """The worker with its model, warm; None if told to stop meanwhile."""
        _log.info("loading the model", model=self._config.model.name, device=self._config.model.device)
        worker = None
        async with anyio.create_task_group() as loading:
            loading.start_soon(self._cancel_on_stop, loading, name="stop while loading")
            worker = await load_worker(
                lambda: self._dependencies.make_engine(self._config),
                self._config.model.step_timeout_s,
                resources,
                self._notifier,
            )
            self._dependencies.start_up.loaded()
            loading.cancel_scope.cancel()
        return worker

    async def _run_cameras(self, publisher: Publisher, description: Description, worker: Worker[Engine]) -> ExitCode:
        model, load_times = await worker.run(lambda engine: (engine.description, engine.load_times))
        publisher.model = model_header(model)
        announcer = Announcer(publisher, self._lag)
        delivery = Delivery(self._queues, publisher, FailureLog())
        states = KeptStates(self._config.states_dir, worker)
        tasks = anyio.create_task_group()
        cameras = Cameras(tasks, self._queues, worker, delivery, announcer, self._dependencies.make_camera, states)
        description.models, description.cameras = (publisher.model,), lambda: cameras.reports
        limit_s, heartbeat_s = self._config.model.step_timeout_s, self._config.publish.heartbeat_s
        reporting = partial(report, cameras, announcer, publisher, self._notifier, self._lag, heartbeat_s)
        with _ends_told(cameras):
            async with tasks:
                tasks.start_soon(pump, self._queues, worker, delivery, self._config.model.max_batch, name="pump")
                tasks.start_soon(end_when_hung, worker, limit_s, name="end when hung")
                tasks.start_soon(beat, publisher, worker, self._notifier, self._lag, name="beat")
                times = self._dependencies.start_up.ready(load_times)
                log_start(model, publisher.endpoints, self._config, self._dependencies.versions, times)
                self._notifier.ready()
                await cameras.apply(self._config.cameras)
                await self._until_stop(cameras, publisher, worker, reporting)
                self._notifier.stopping()
                await cameras.stop()
                tasks.cancel_scope.cancel()
        return self._exit_code(cameras)

    async def _until_stop(
        self,
        cameras: Cameras,
        publisher: Publisher,
        worker: Worker[Engine],
        reporting: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(reporting, name="report")  # not while cameras end: no status of one follows its end
            waiting.start_soon(self._reload_when_asked, cameras, publisher, name="reload")
            waiting.start_soon(self._renew_when_asked, worker, name="renew streams")
            if self._config.exit_when_done:
                waiting.start_soon(self._stop_when_done, cameras, name="stop when done")
            await self._stop.wait()
            waiting.cancel_scope.cancel()

    async def _stop_when_done(self, cameras: Cameras) -> None:
        await cameras.all_finished()
        _log.info("every source has ended")
        self._stop.set()

    async def _reload_when_asked(self, cameras: Cameras, publisher: Publisher) -> None:
        while True:
            await self._reload.wait()
            self._reload = anyio.Event()
            self._notifier.reloading()
            config = await self._read_config()
            if config is not None:
                await self._take_new_config(config, cameras)
            publisher.count_reload(taken=config is not None)
            self._notifier.ready()
            await anyio.sleep(_RELOAD_PAUSE_S)

    async def _renew_when_asked(self, worker: Worker[Engine]) -> None:
        while True:
            await self._renewal.wait()
            self._renewal = anyio.Event()
            renewed = await worker.run(_renew_streams)
            _log.info("streams begin new epochs", cameras=renewed)

    async def _take_new_config(self, config: ServiceConfig, cameras: Cameras) -> None:
        fixed = replace(
            config,
            publish=self._config.publish,
            model=self._config.model,
            state_dir=self._config.state_dir,
            keep_state=self._config.keep_state,
            runtime_dir=self._config.runtime_dir,
            exit_when_done=self._config.exit_when_done,
        )
        if needs_restart := list(different_keys(fixed, config)):
            _log.warning("some of the new config needs a restart", keys=needs_restart)
        self._dependencies.configure(fixed)
        await cameras.apply(fixed.cameras)
        log_reload(self._config, fixed)
        self._config = fixed

    async def _read_config(self) -> ServiceConfig | None:
        """The config as it is now; None if there is none to be had, which the log explains."""
        try:
            with anyio.fail_after(_RELOAD_S):
                return await anyio.to_thread.run_sync(self._dependencies.load_config, abandon_on_cancel=True)
        except (ConfigError, ModelError) as error:
            _log.error("the new config is wrong, the old one stays", problems=str(error))
        except TimeoutError:
            _log.error("the new config cannot be read, the old one stays", waited_s=_RELOAD_S)
        return None

    def _exit_code(self, cameras: Cameras) -> ExitCode:
        states = [camera.status.state for camera in cameras.reports]
        all_failed = bool(states) and all(state is CameraState.FAILED for state in states)
        return ExitCode.NO_INPUT if self._config.exit_when_done and all_failed else ExitCode.OK

    async def _cancel_on_stop(self, loading: TaskGroup) -> None:
        await self._stop.wait()
        loading.cancel_scope.cancel()

    async def _receive_signals(self) -> None:
        receiver = anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *_HELD_BACK)
        with receiver as signals, _let_through(*_HELD_BACK):
            async for number in signals:
                if number == signal.SIGHUP:
                    self._reload.set()
                elif number == signal.SIGUSR1:
                    self._renewal.set()
                elif self._stop.is_set():
                    _log.warning("told to stop a second time: stopping at once")
                    os._exit(128 + number)
                else:
                    _log.info("stopping", signal=number.name)
                    self._stop.set()


def _most_at_once(config: ServiceConfig) -> int:
    """Records that leave in one go: those of a forward, of which a stream's first block is one, and of every `end`."""
    blocks = [camera.stream.scale_frames for camera in config.cameras]
    return max(len(config.cameras), config.model.max_batch, *blocks)


def _renew_streams(engine: Engine) -> list[str]:
    # Those that had an epoch to end.
    cameras = [stream.camera for stream in engine.statistics().streams]
    return [camera for camera in cameras if engine.renew_stream(camera)]


@contextmanager
def _let_through(*numbers: signal.Signals) -> Iterator[None]:
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _ends_told(cameras: Cameras) -> Iterator[None]:
    """Publishes an `end` for each camera, and nothing else, where the device failed."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = only_error(group)
        if isinstance(error, DeviceError):
            cameras.give_up(f"the device failed: {error}")
        raise
