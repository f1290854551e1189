"""Keeps streams across a restart: one file per camera, written at the stop and used once at the next start."""

import time
from functools import partial
from pathlib import Path

import anyio
import structlog

from retinad.pipeline.config import CameraConfig
from retinad.pipeline.engine.checkpoint import SavedStream
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.errors import AdmissionError, StateError
from retinad.pipeline.files.atomic import PARTIAL
from retinad.pipeline.frames import Size
from retinad.pipeline.worker import Worker

from ..config.keys import error_text

_log = structlog.get_logger("retinad")

_SUFFIX = ".safetensors"
_ANSWER_S = 0.1
"""Seconds by which a save may exceed its time limit: the limit is checked only between two pieces of the file."""


class StreamSnapshots:
    """Saves and restores streams, in the worker's thread. Failures are logged and stop no camera.

    Args:
        folder: an existing folder for the files, or None to save nothing.
        worker: owner of the engine.
        max_age_s: maximum age, in seconds, of a file that is restored; None for no limit.
    """

    def __init__(self, folder: Path | None, worker: Worker[Engine], max_age_s: float | None = None) -> None:
        self._folder = folder
        self._max_age_s = max_age_s
        self._worker = worker
        self._sizes: dict[str, Size] = {}
        if folder is not None:
            for left in folder.glob(f"*{PARTIAL}"):  # left by a process that was killed while writing
                left.unlink(missing_ok=True)

    async def restore(self, camera: str) -> None:
        """Restore a newly opened stream from its file, if there is one and it fits, and delete the file.

        A snapshot is used once: after a crash, the next start begins empty rather than from an old snapshot.
        """
        path = self._path(camera)
        if path is None:
            return
        try:
            load = partial(_load, camera=camera, path=path, max_age_s=self._max_age_s)
            saved = await self._worker.run(load, limited=False)
        except (StateError, AdmissionError, OSError) as error:
            _log.warning("stream snapshot not used", camera=camera, reason=error_text(error))
            return
        if saved is None:
            return
        self._sizes[camera] = saved.source_size
        _log.info(
            "stream snapshot restored",
            camera=camera,
            epoch=saved.counters.epoch,
            epoch_frame=saved.counters.next_frame,
            age_s=round(time.time() - saved.saved_unix_ns / 1e9, 1),
        )

    def check_size(self, camera: str, size: Size) -> None:
        """Log if a restored snapshot is dropped because the camera's frames now have another size."""
        saved = self._sizes.pop(camera, size)
        if saved != size:
            reason = "its frames were {}x{}, now they are {}x{}".format(*saved, *size)
            _log.warning("stream snapshot not used", camera=camera, reason=reason)

    async def save(self, config: CameraConfig, within_s: float) -> None:
        """Write a stream to its file, completely or not at all. In either case one log line says which.

        A stream that never had a frame has nothing to save, and gets no log line.

        Args:
            config: the stream's camera, which has no frames in flight.
            within_s: time limit in seconds, which includes the worker's earlier calls.
        """
        path, deadline_s = self._path(config.name), time.monotonic() + within_s
        if path is None:
            return
        saved, reason = False, "the service ended before it was saved"
        try:
            # A little longer, so that the worker itself can say what took the time.
            with anyio.move_on_after(within_s + _ANSWER_S) as waiting:
                save = partial(_save, config=config, path=path, deadline_s=deadline_s)
                saved = await self._worker.run(save, limited=False)
                reason = ""
            if waiting.cancelled_caught:
                reason = f"there was no time left: the model's step or other cameras took all of {within_s:.1f} s"
        except (StateError, ValueError) as error:
            reason = error_text(error)
        finally:
            if saved:
                _log.info("stream snapshot saved", camera=config.name, file=str(path))
            elif reason:
                _log.warning("stream snapshot not saved", camera=config.name, reason=reason)

    def _path(self, camera: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{camera}{_SUFFIX}"


def _load(engine: Engine, camera: str, path: Path, max_age_s: float | None) -> SavedStream | None:
    if not path.exists():
        return None
    saved = engine.load_state(camera, path, max_age_s=max_age_s)
    path.unlink(missing_ok=True)
    return saved


def _save(engine: Engine, config: CameraConfig, path: Path, deadline_s: float) -> bool:
    """Whether the stream was saved; False if there is nothing to save."""
    if time.monotonic() >= deadline_s:
        raise StateError("there was no time left to write it")
    frames = {stream.camera: stream.frames for stream in engine.statistics().streams}.get(config.name, 0)
    if not frames:
        return False
    if frames < config.stream.scale_frames:
        # The stop cut its first block short, if there was one, and a restored stream would keep the short block.
        raise StateError("its first block of frames was incomplete")
    engine.save_state(config.name, path, deadline_s=deadline_s)
    return True
