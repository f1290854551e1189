"""Renews streams on request, for example if a camera started in the dark: each ends its epoch and begins a new one."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

import structlog

from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.worker import Worker

from .signals import Request

_log = structlog.get_logger("retinad")


async def renew_when_asked(
    request: Request, worker: Worker[Engine], take_names: Callable[[], Sequence[str] | None]
) -> None:
    """Renew streams on each request, forever.

    Args:
        request: asks for a renewal.
        worker: owner of the engine.
        take_names: returns the cameras that were named with the request, or None for all.
    """
    while True:
        await request.take()
        renewed = await worker.run(partial(_renew_streams, take_names()))
        _log.info("streams begin new epochs", cameras=renewed)


def _renew_streams(names: Collection[str] | None, engine: Engine) -> list[str]:
    """End the epochs of these streams. Returns the names of the cameras that had an epoch."""
    cameras = [stream.camera for stream in engine.statistics().streams if names is None or stream.camera in names]
    return [camera for camera in cameras if engine.renew_stream(camera)]
