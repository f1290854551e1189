"""A camera as the service runs it: one whose changes of state, and what its capture process prints, are in the log."""

from collections.abc import Callable

from retinad.pipeline.capture.camera import Camera, CameraStatus
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.frame_queue import FrameQueue

from .events import CameraLog


class LoggedCamera:
    """A camera and its log, which is closed however the camera comes to its end.

    Args:
        config: the camera.
        queue: where its frames go.
        on_status: told each change of state, after the log.
        first_epoch: number of its first connection.
    """

    def __init__(
        self, config: CameraConfig, queue: FrameQueue, on_status: Callable[[CameraStatus], None], *, first_epoch: int
    ) -> None:
        self._log = CameraLog(config.name)
        self._on_status = on_status
        self._camera = Camera(config, queue, self._announce, on_log=self._log.line, first_epoch=first_epoch)

    @property
    def status(self) -> CameraStatus:
        """Where it stands."""
        return self._camera.status

    async def run(self) -> CameraStatus:
        """See `Camera.run`."""
        try:
            return await self._camera.run()
        finally:
            self._log.close()

    def _announce(self, status: CameraStatus) -> None:
        self._log.state(status)
        self._on_status(status)
