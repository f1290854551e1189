"""The running cameras. Each can be started, stopped and replaced without disturbing the others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.frame_queue import FrameCounters, FrameQueues

from .camera_run import CameraRun, CameraServices, Capturing, MakeCamera, with_rates
from .reload_plan import keeps_memory
from .state import CameraReport

PACE_S = 0.002
"""Seconds between messages of the same kind from different cameras. A slow subscriber's queue may be as short as 8
messages, and the number of cameras may grow with a reload. Measured with 64 messages at once: a subscriber that
otherwise keeps up loses two thirds; at this pace, none."""


class CameraSink(Protocol):
    """Publishes what happens to the cameras."""

    def camera_changed(self, status: CameraStatus, counters: FrameCounters) -> None:
        """A camera's state changed."""

    def camera_ended(self, status: CameraStatus, counters: FrameCounters, next_seq: int | None) -> None:
        """A camera is finished; its counters are final and consistent.

        Args:
            status: its last state.
            counters: its frames since the service started.
            next_seq: number that the next record of the camera's last connection would have had; None if it never
                connected.
        """


class Cameras:
    """Starts and stops cameras in a task group. Used on the event loop only.

    A camera that the engine has no room for fails with the reason, and is tried again with the next `apply`.

    Args:
        tasks: runs the cameras' tasks.
        queues: where their frames go.
        services: the parts of the service that the cameras use.
        sink: called with every change.
        make_camera: makes a camera's state machine.
    """

    def __init__(
        self,
        tasks: TaskGroup,
        queues: FrameQueues,
        services: CameraServices,
        sink: CameraSink,
        make_camera: MakeCamera,
    ) -> None:
        self._tasks = tasks
        self._queues = queues
        self._services = services
        self._sink = sink
        self._make_camera = make_camera
        self._running: dict[str, CameraRun] = {}
        self._applying = True  # nothing has been applied yet, so nothing is finished
        self._changed = anyio.Event()
        self._ending = anyio.Lock()
        # Kept for removed cameras too: if one comes back, its totals and epochs continue.
        self._finished: dict[str, CameraReport] = {}
        self._wanted: dict[str, CameraConfig] = {}

    @property
    def reports(self) -> list[CameraReport]:
        """Every configured camera, including those that have not started and those that are finished."""
        others = [self._finished.get(name) or _unstarted(config) for name, config in self._wanted.items()]
        return [run.report for run in self._running.values()] + [
            report for report in others if report.config.name not in self._running
        ]

    @property
    def totals(self) -> FrameCounters:
        """Frame counters summed over all cameras since the service started, including removed ones."""
        finished = [report.counters for name, report in self._finished.items() if name not in self._running]
        counters = finished + [run.queue.counters for run in self._running.values()]
        return FrameCounters(
            captured=sum(one.captured for one in counters),
            published=sum(one.published for one in counters),
            dropped=sum(one.dropped for one in counters),
            failed=sum(one.failed for one in counters),
            nan=sum(one.nan for one in counters),
            decode_errors=sum(one.decode_errors for one in counters),
        )

    @property
    def names(self) -> list[str]:
        """Names of the configured cameras, the running ones first."""
        return [*self._running, *(name for name in self._wanted if name not in self._running)]

    def report(self, camera: str) -> CameraReport | None:
        """One camera; None if it has not started yet, or is no longer configured."""
        run = self._running.get(camera)
        return run.report if run else self._finished.get(camera) if camera in self._wanted else None

    async def all_finished(self) -> None:
        """Wait until every camera has ended or failed for good."""
        while self._applying or self._running:
            await self._changed.wait()

    async def apply(self, configs: Sequence[CameraConfig]) -> None:
        """Run exactly these cameras: stop those that were removed or changed, start those that are new or changed.

        Where a change leaves the stream's memory valid, only the source is opened again. A camera whose configuration
        is unchanged keeps running and loses no frame. A finished one stays finished unless its configuration changed,
        the engine had no room for it, or it was removed in between.
        """
        wanted = {config.name: config for config in configs}
        before, self._wanted = self._wanted, wanted
        self._applying = True
        changed = [run for name, run in self._running.items() if wanted.get(name) != run.config]
        await self._stop([run for run in changed if not _reopen(run, wanted)])
        for config in configs:
            finished = self._finished.get(config.name)
            if config.name in self._running:
                continue
            if finished is None or finished.refused or finished.config != config or config.name not in before:
                self._start(config, finished)
                await anyio.sleep(PACE_S)
        self._applying = False
        self._notify()

    async def stop(self, save_within_s: float | None = None) -> None:
        """Stop all cameras for good: captures end at once, frames in flight are drained for at most `DRAIN_S`,
        snapshots are saved, then each `end` is published.

        Args:
            save_within_s: seconds for saving the snapshots; None to save none.
        """
        await self._stop(list(self._running.values()), save_within_s)

    def give_up(self, reason: str) -> None:
        """Publish each camera's `end` now, because the model is gone and frames in flight are lost.

        Args:
            reason: why the cameras failed.
        """
        for run in list(self._running.values()):
            run.refusal = reason
            self._finish(run)

    async def _stop(self, runs: Sequence[CameraRun], save_within_s: float | None = None) -> None:
        for run in runs:
            run.stop(save_within_s=save_within_s)
        for run in runs:
            await run.done.wait()

    def _start(self, config: CameraConfig, past: CameraReport | None) -> None:
        counters = replace(past.counters) if past else FrameCounters()
        first_epoch = past.next_epoch if past else 0
        queue = self._queues.open(
            config.name,
            config.mode,
            config.waiting_frames,
            counters,
            frames_per_step=config.frames_per_step,
            first_epoch=first_epoch,
        )

        def on_status(status: CameraStatus) -> None:
            if status.size is not None:
                self._services.snapshots.check_size(config.name, config.crop[2:] if config.crop else status.size)
            if status.state is not CameraState.RUNNING:
                run.lost()
            self._sink.camera_changed(with_rates(status, queue), queue.counters)

        def make(config: CameraConfig, first_epoch: int) -> Capturing:
            return self._make_camera(config, queue, on_status, first_epoch=first_epoch)

        run = CameraRun(config, queue, first_epoch, self._services, make)
        self._running[config.name] = run
        self._tasks.start_soon(self._run, run, name=f"camera {config.name}")

    async def _run(self, run: CameraRun) -> None:
        await run.run()
        async with self._ending:
            self._finish(run)
            await anyio.sleep(PACE_S)

    def _finish(self, run: CameraRun) -> None:
        name, delivery = run.config.name, self._services.delivery
        run.queue.abandon()
        self._queues.close(name)
        self._finished[name] = run.report
        del self._running[name]
        epoch = run.status.stream_epoch
        next_seq = None if epoch is None else delivery.next_seq(name, epoch)
        self._sink.camera_ended(run.status, run.queue.counters, next_seq)
        delivery.forget(name)
        run.done.set()
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _reopen(run: CameraRun, wanted: Mapping[str, CameraConfig]) -> bool:
    config = wanted.get(run.config.name)
    return config is not None and keeps_memory(run.config, config) and run.reopen(config)


def _unstarted(config: CameraConfig) -> CameraReport:
    return CameraReport(config, CameraStatus(config.name, CameraState.CONNECTING), FrameCounters(), 0)
