"""The service: opens every part, runs them in one task group, and closes them in order. Shutdown is cancellation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio
import structlog
from anyio.abc import TaskGroup

from retinad.client.wire import ModelHeader
from retinad.pipeline.capture.camera import CameraState
from retinad.pipeline.capture.starts import CaptureStarts
from retinad.pipeline.delivery import Delivery
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.heads import largest_outputs, largest_record_bytes
from retinad.pipeline.errors import DeviceError
from retinad.pipeline.frame_queue import FrameQueues
from retinad.pipeline.publish.publisher import Publisher
from retinad.pipeline.pump import pump
from retinad.pipeline.worker import Worker

from ..config.load import ServiceConfig
from ..errors import only_error
from ..exit_codes import ExitCode
from ..kernel_cache import KernelCache
from .access_log import log_access
from .camera_log import FailureLog
from .camera_run import CameraServices, MakeCamera
from .cameras import Cameras
from .events import log_start
from .heartbeat import beat, end_when_hung, report
from .load import load_worker, make_engine
from .logged_camera import LoggedCamera
from .loop_lag import LoopLag
from .monitor import StateMonitor
from .queries import serve_queries
from .reload import Reloader
from .renewal import renew_when_asked
from .signals import Signals
from .snapshots import StreamSnapshots
from .startup_times import StartupTimer
from .status import Announcer, hello_header, model_header
from .systemd import Notifier

_BEAT_S = 0.05
_STOP_S = 5.0
"""Maximum duration of a stop on a busy machine, in seconds, without the time for saving the streams."""

_log = structlog.get_logger("retinad")


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Everything that the service gets from outside. Tests replace parts of it.

    Attributes:
        load_config: reads the config again; raises ConfigError. May block: it runs in a thread.
        configure: applies the parts of a config that lie outside the service: log level, secrets to mask.
        versions: versions of retinad and its libraries, by name.
        take_renewals: returns the cameras that were named with a request to renew streams, or None for all.
        make_engine: loads the model and warms it up, in the worker's thread.
        make_camera: makes a camera's state machine.
        startup: measures how long startup takes.
    """

    load_config: Callable[[], ServiceConfig]
    configure: Callable[[ServiceConfig], None]
    versions: Mapping[str, str]
    take_renewals: Callable[[], Sequence[str] | None] = lambda: None
    make_engine: Callable[[ServiceConfig], AbstractContextManager[Engine]] = make_engine
    make_camera: MakeCamera = field(default_factory=lambda: partial(LoggedCamera, starts=CaptureStarts()))
    startup: StartupTimer = field(default_factory=lambda: StartupTimer(KernelCache(None)))


async def serve(config: ServiceConfig, dependencies: Dependencies, notifier: Notifier) -> ExitCode:
    """Run until SIGTERM or SIGINT or, with `exit_when_done`, until every source has ended.

    SIGHUP reloads the config: cameras are added, removed or replaced without disturbing the others; an invalid config
    changes nothing. SIGUSR1 ends the current epoch of every stream, so that each begins a new one; if it comes from
    `retinad renew CAMERA`, only that camera's. A second SIGTERM or SIGINT ends the process at once.

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
        self._signals = Signals()
        self._outputs = largest_outputs(config.model)
        self._monitor = StateMonitor(self._outputs, dependencies.versions, LoopLag(_BEAT_S))
        self._reloader = Reloader(config, dependencies.load_config, dependencies.configure, notifier)

    async def run(self) -> ExitCode:
        self._dependencies.startup.enter()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._signals.receive, name="signals")
            code = await self._run_parts()
            tasks.cancel_scope.cancel()
        _log.info("stopped")
        return code

    async def _run_parts(self) -> ExitCode:
        with Publisher(
            self._config.publish,
            model=ModelHeader(name=self._config.model.name, weights="loading"),
            largest_message_bytes=largest_record_bytes(self._config.model),
            describe=lambda: hello_header(self._monitor.snapshot()),
            burst_messages=_largest_burst(self._config),
        ) as publisher:
            self._monitor.watch(publisher)
            async with AsyncExitStack() as resources:
                worker = await self._load_model(resources)
                if worker is None:
                    return ExitCode.OK
                return await self._run_cameras(publisher, worker)

    async def _load_model(self, resources: AsyncExitStack) -> Worker[Engine] | None:
        """The worker with its warm model; None if the service was stopped while the model was loading."""
        _log.info("loading model", model=self._config.model.name, device=self._config.model.device)
        worker = None
        async with anyio.create_task_group() as loading:
            loading.start_soon(self._cancel_on_stop, loading, name="stop while loading")
            worker = await load_worker(
                lambda: self._dependencies.make_engine(self._config),
                self._config.model.step_timeout_s,
                resources,
                self._notifier,
            )
            self._dependencies.startup.loaded()
            loading.cancel_scope.cancel()
        return worker

    async def _run_cameras(self, publisher: Publisher, worker: Worker[Engine]) -> ExitCode:
        model, load_times = await worker.run(lambda engine: (engine.description, engine.load_times))
        publisher.model = model_header(model)
        announcer, queues = Announcer(publisher, self._monitor), FrameQueues()
        delivery = Delivery(queues, publisher, FailureLog())
        snapshots = StreamSnapshots(self._config.states_dir, worker, self._config.keep_state_max_age_s)
        services = CameraServices(worker, delivery, snapshots)
        tasks = anyio.create_task_group()
        cameras = Cameras(tasks, queues, services, announcer, self._dependencies.make_camera)
        self._monitor.model, self._monitor.cameras = model, cameras
        with _ends_after_device_failure(cameras):
            async with tasks:
                tasks.start_soon(pump, queues, worker, delivery, self._config.model.max_batch, name="pump")
                tasks.start_soon(end_when_hung, worker, self._config.model.step_timeout_s, name="end when hung")
                tasks.start_soon(beat, publisher, queues, worker, self._notifier, self._monitor.lag, name="beat")
                times = self._dependencies.startup.ready(load_times)
                log_start(model, publisher.endpoints, self._config, self._dependencies.versions, times)
                self._notifier.ready()
                await cameras.apply(self._config.cameras)
                await self._until_stop(cameras, announcer, publisher, worker)
                await self._stop(cameras)
                tasks.cancel_scope.cancel()
        return self._exit_code(cameras)

    async def _until_stop(
        self, cameras: Cameras, announcer: Announcer, publisher: Publisher, worker: Worker[Engine]
    ) -> None:
        monitor, heartbeat_s = self._monitor, self._config.publish.heartbeat_s
        # All of this ends before the cameras do: no camera's status follows its `end`.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(report, cameras, monitor, announcer, publisher, self._notifier, heartbeat_s, name="report")
            tasks.start_soon(log_access, publisher, name="log access")
            tasks.start_soon(serve_queries, publisher, worker, name="answer queries")
            tasks.start_soon(monitor.follow_engine, worker, heartbeat_s, name="engine statistics")
            tasks.start_soon(self._reloader.run, self._signals.reload, cameras, monitor, name="reload")
            take_names = self._dependencies.take_renewals
            tasks.start_soon(renew_when_asked, self._signals.renewal, worker, take_names, name="renew streams")
            if self._config.exit_when_done:
                tasks.start_soon(self._stop_when_done, cameras, name="stop when done")
            await self._signals.stop.wait()
            tasks.cancel_scope.cancel()

    async def _stop(self, cameras: Cameras) -> None:
        self._notifier.stopping()
        if self._config.states_dir is None:
            await cameras.stop()
            return
        save_within_s = self._config.keep_state_timeout_s
        self._notifier.extend_timeout(save_within_s + _STOP_S)
        await cameras.stop(save_within_s)

    async def _stop_when_done(self, cameras: Cameras) -> None:
        await cameras.all_finished()
        _log.info("all sources ended")
        self._signals.stop.ask()

    async def _cancel_on_stop(self, loading: TaskGroup) -> None:
        await self._signals.stop.wait()
        loading.cancel_scope.cancel()

    def _exit_code(self, cameras: Cameras) -> ExitCode:
        states = [camera.status.state for camera in cameras.reports]
        all_failed = bool(states) and all(state is CameraState.FAILED for state in states)
        return ExitCode.NO_INPUT if self._config.exit_when_done and all_failed else ExitCode.OK


def _largest_burst(config: ServiceConfig) -> int:
    """Maximum number of messages sent at once: the records of one forward pass (such as a stream's first block), or the
    `end` of every camera.
    """
    blocks = [camera.stream.scale_frames for camera in config.cameras]
    return max(len(config.cameras), config.model.max_batch, *blocks)


@contextmanager
def _ends_after_device_failure(cameras: Cameras) -> Iterator[None]:
    """If the device fails, publish an `end` for each camera and nothing else."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = only_error(group)
        if isinstance(error, DeviceError):
            cameras.give_up(f"the device failed: {error}")
        raise
