"""Renews all streams on request: each ends its epoch and begins a new one, as after a camera started in the dark."""

import structlog

from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.worker import Worker

from .signals import Request

_log = structlog.get_logger("retinad")


async def renew_when_asked(request: Request, worker: Worker[Engine]) -> None:
    """Renew all streams whenever it is asked for, forever."""
    while True:
        await request.take()
        renewed = await worker.run(_renew_streams)
        _log.info("streams begin new epochs", cameras=renewed)


def _renew_streams(engine: Engine) -> list[str]:
    """Names of the cameras that had an epoch to end."""
    cameras = [stream.camera for stream in engine.statistics().streams]
    return [camera for camera in cameras if engine.renew_stream(camera)]
