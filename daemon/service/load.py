"""Loads the model in the worker's thread, asks systemd for more time meanwhile, and retries if the device is busy."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, AsyncExitStack

import anyio
import structlog

from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.open import open_engine
from retinad.pipeline.errors import DeviceError, SettingError
from retinad.pipeline.model.presets import TINY
from retinad.pipeline.worker import Worker

from ..config.load import ServiceConfig
from .systemd import Notifier

TRIES = 3
PAUSE_S = 5.0
"""Seconds between tries: time for another process to release the GPU, or for the driver to finish setting it up."""

_ASK_S = 5.0
_SLOW_PASS_S = 1.0
"""A warm-up pass that takes at least this many seconds is logged at level info."""

_USUAL_SIZES = ((640, 480), (1920, 1080))
"""4:3 and 16:9. A camera with another aspect ratio is warmed up by its first frame, which then takes longer."""

_log = structlog.get_logger("retinad")


def make_engine(config: ServiceConfig) -> Engine:
    """The service's engine (see `open_engine`), warmed up for the usual aspect ratios.

    Raises:
        SettingError: steps on this device take longer than `step_timeout_s`, so that the service would end again and
            again.
    """
    engine = open_engine(config.model, _USUAL_SIZES, _log_pass)
    try:
        _check_step_time(config, engine.load_times.frame_s)
    except SettingError:
        engine.close()
        raise
    return engine


def _log_pass(number: int, total: int, took_s: float) -> None:
    level = logging.INFO if took_s >= _SLOW_PASS_S else logging.DEBUG
    _log.log(level, "warming up", passes=f"{number} of {total}", took_s=round(took_s, 1))


def _check_step_time(config: ServiceConfig, frame_s: float) -> None:
    model, frames = config.model, 1
    if model.device == "cpu" and model.running_mixers:  # on a GPU, a step with more frames takes hardly longer
        blocks = [camera.stream.scale_frames for camera in config.cameras]
        frames = max(min(model.max_batch, len(config.cameras)), *blocks)
    step_s = frame_s * frames
    if step_s <= model.step_timeout_s:
        return
    place = "the CPU" if model.device == "cpu" else model.device
    took = f"a step took {frame_s:.3g} s on {place}"
    if frame_s <= model.step_timeout_s:
        took += f", and the largest has {frames} frames, about {step_s:.3g} s"
    smaller = "a smaller network" if model.name == TINY.name else f"preset = '{TINY.name}'"
    raise SettingError(f"{took}: raise model.step_timeout_s, which is {model.step_timeout_s:g} s, or use {smaller}")


async def load_worker(
    make: Callable[[], AbstractContextManager[Engine]],
    call_limit_s: float,
    resources: AsyncExitStack,
    notifier: Notifier,
) -> Worker[Engine]:
    """A worker with a warm engine, entered in `resources`.

    Args:
        make: makes the engine, in the worker's thread; called again if the device fails.
        call_limit_s: see `Worker`.
        resources: closes the worker at the end.
        notifier: asked for more time every few seconds.

    Raises:
        ModelError: the model cannot be loaded or warmed up.
        DeviceError: the device failed every time.
    """
    async with anyio.create_task_group() as asking:
        asking.start_soon(_ask_for_time, notifier, name="extend start timeout")
        worker = await _load(make, call_limit_s, resources)
        asking.cancel_scope.cancel()
    return worker


async def _load(
    make: Callable[[], AbstractContextManager[Engine]], call_limit_s: float, resources: AsyncExitStack
) -> Worker[Engine]:
    failures = 0
    while True:
        try:
            return await resources.enter_async_context(Worker(make, call_limit_s=call_limit_s))
        except DeviceError as error:
            failures += 1
            if failures == TRIES:
                raise
            _log.warning("device failed, retrying", problem=str(error), tries=failures, pause_s=PAUSE_S)
        await anyio.sleep(PAUSE_S)


async def _ask_for_time(notifier: Notifier) -> None:
    while True:
        notifier.extend_timeout(2 * _ASK_S)
        notifier.status("loading the model")
        await anyio.sleep(_ASK_S)
