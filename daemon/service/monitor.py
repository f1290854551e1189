"""Collects the service's state (`state.py`) from its running parts. No other module reads all of them."""

import time
from collections.abc import Callable, Mapping, Sequence

import anyio

from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.statistics import EngineStatistics, ModelDescription
from retinad.pipeline.frame_queue import FrameCounters
from retinad.pipeline.frames import Output
from retinad.pipeline.publish.publisher import Publisher, PublisherStatistics
from retinad.pipeline.worker import Worker

from .cameras import Cameras
from .loop_lag import LoopLag
from .state import ProcessState, ServiceState


class StateMonitor:
    """Reads the parts of the service as they are opened. Used on the event loop only.

    Args:
        outputs: the outputs that are published of each frame.
        versions: versions of retinad and its libraries, by name.
        lag: measures the event loop's lag.
        clock: monotonic seconds.

    Attributes:
        lag: measures the event loop's lag.
        model: the loaded model; None until it is set.
        cameras: the cameras; None until they are set.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        versions: Mapping[str, str],
        lag: LoopLag,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model: ModelDescription | None = None
        self.cameras: Cameras | None = None
        self._outputs = tuple(outputs)
        self._versions = dict(versions)
        self.lag = lag
        self._clock = clock
        self._opened_s = clock()
        self._publisher: Publisher | None = None
        self._engine = EngineStatistics()
        self._reloads = 0
        self._reload_failures = 0

    def watch(self, publisher: Publisher) -> None:
        """Read an open publisher from now on. Uptime counts from here."""
        self._publisher = publisher
        self._opened_s = self._clock()

    def count_reload(self, *, applied: bool) -> None:
        """Count an attempt to reload the config, and whether the new config was applied."""
        self._reloads += 1
        self._reload_failures += not applied

    async def follow_engine(self, worker: Worker[Engine], interval_s: float) -> None:
        """Read the engine's statistics every `interval_s`, forever.

        The engine may be read in the worker's thread only. During a long step this waits, and snapshots keep the
        previous reading; they never wait themselves.
        """
        while True:
            self._engine = await worker.run(lambda engine: engine.statistics())
            await anyio.sleep(interval_s)

    @property
    def process(self) -> ProcessState:
        """The part of the state that every status message carries. Cheap; independent of the number of cameras."""
        publisher = self._publisher
        return ProcessState(
            uptime_s=self._clock() - self._opened_s,
            loop_lag_ms=self.lag.worst_ms,
            reloads=self._reloads,
            reload_failures=self._reload_failures,
            publisher=PublisherStatistics() if publisher is None else publisher.statistics(),
        )

    def snapshot(self) -> ServiceState:
        """The state of the service now."""
        cameras = self.cameras
        return ServiceState(
            versions=self._versions,
            outputs=self._outputs,
            endpoints=() if self._publisher is None else self._publisher.endpoints,
            model=self.model,
            process=self.process,
            engine=self._engine,
            cameras=() if cameras is None else tuple(cameras.reports),
            totals=FrameCounters() if cameras is None else cameras.totals,
        )
