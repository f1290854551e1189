"""Loads the model in the worker's thread: systemd is told that it takes long, and a device gets time to be there."""

from collections.abc import Callable
from contextlib import AbstractContextManager, AsyncExitStack

import anyio
import structlog

from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.open import open_engine
from retinad.pipeline.errors import DeviceError
from retinad.pipeline.worker import Worker

from ..config.load import ServiceConfig
from .systemd import Notifier

TRIES = 3
PAUSE_S = 5.0
"""Between tries: a GPU that another process is about to let go, or that the driver still sets up, is there then."""

_ASK_S = 5.0
_USUAL_SIZES = ((640, 480), (1920, 1080))
"""4:3 and 16:9: a camera of another shape costs a moment at its first frame."""

_log = structlog.get_logger("retinad")


def make_engine(config: ServiceConfig) -> Engine:
    """The service's engine: see `open_engine`; warm for the usual shapes of pictures."""
    return open_engine(config.model, _USUAL_SIZES)


async def load_worker(
    make: Callable[[], AbstractContextManager[Engine]],
    call_limit_s: float,
    resources: AsyncExitStack,
    notifier: Notifier,
) -> Worker[Engine]:
    """A worker whose engine is warm, entered in `resources`.

    Args:
        make: makes the engine; runs in the worker's thread, and again after a failure of the device.
        call_limit_s: see `Worker`.
        resources: closes the worker at the end.
        notifier: told every few seconds that loading takes longer.

    Raises:
        ModelError: the model cannot be loaded or warmed up.
        DeviceError: the device failed at every try.
    """
    async with anyio.create_task_group() as asking:
        asking.start_soon(_ask_for_time, notifier, name="start-up time")
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
            _log.warning("the device failed, trying again", problem=str(error), tries=failures, pause_s=PAUSE_S)
        await anyio.sleep(PAUSE_S)


async def _ask_for_time(notifier: Notifier) -> None:
    while True:
        notifier.extend_timeout(2 * _ASK_S)
        notifier.status("loading the model")
        await anyio.sleep(_ASK_S)
