"""A camera whose state changes and capture process output are logged."""

from collections.abc import Callable

from retinad.pipeline.capture.camera import Camera, CameraStatus
from retinad.pipeline.capture.starts import CaptureStarts
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.frame_queue import FrameQueue

from .camera_log import CameraLog


class LoggedCamera:
    """A camera and its log, which is closed however the camera ends.

    Args:
        config: the camera's configuration.
        queue: where its frames go.
        on_status: called with each change of state, after it is logged.
        first_epoch: stream epoch of its first connection.
        starts: the budget of capture process starts, which cameras share.
    """

    def __init__(
        self,
        config: CameraConfig,
        queue: FrameQueue,
        on_status: Callable[[CameraStatus], None],
        *,
        first_epoch: int,
        starts: CaptureStarts | None = None,
    ) -> None:
        self._log = CameraLog(config.name)
        self._on_status = on_status
        self._camera = Camera(
            config, queue, self._announce, on_log=self._log.line, first_epoch=first_epoch, starts=starts
        )

    @property
    def status(self) -> CameraStatus:
        """Its current state."""
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
