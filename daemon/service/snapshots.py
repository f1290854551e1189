"""Keeps what streams remember across a restart: a file a camera, written at the stop, used once at the next start."""

import time
from pathlib import Path

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


class KeptStates:
    """Reads and writes the files, in the worker's thread. Nothing that goes wrong with one stops a camera.

    Args:
        folder: where they are, or None to keep nothing. It exists.
        worker: owner of the engine.
    """

    def __init__(self, folder: Path | None, worker: Worker[Engine]) -> None:
        self._folder = folder
        self._worker = worker
        self._sizes: dict[str, Size] = {}
        if folder is not None:
            for left in folder.glob(f"*{PARTIAL}"):  # of a process that was killed while it wrote
                left.unlink(missing_ok=True)

    async def restore(self, camera: str) -> None:
        """Let a stream that was just opened go on from its file, if there is one and it fits; the file is then gone.

        So a memory is used once: after a crash the next start has none, rather than one of long ago.
        """
        path = self._path(camera)
        if path is None:
            return
        try:
            saved = await self._worker.run(lambda engine: _load(engine, camera, path), limited=False)
        except (StateError, AdmissionError, OSError) as error:
            _log.warning("the kept memory is not used", camera=camera, reason=error_text(error))
            return
        if saved is None:
            return
        self._sizes[camera] = saved.source_size
        _log.info(
            "goes on from its kept memory",
            camera=camera,
            epoch=saved.counters.epoch,
            epoch_frame=saved.counters.next_frame,
            age_s=round(time.time() - saved.saved_unix_ns / 1e9, 1),
        )

    def see(self, camera: str, size: Size) -> None:
        """Note the size of a camera's frames: a memory of another size is of no use, and the log says so."""
        kept = self._sizes.pop(camera, size)
        if kept != size:
            reason = "its frames were {}x{}, are {}x{}".format(*kept, *size)
            _log.warning("the kept memory is not used", camera=camera, reason=reason)

    async def save(self, config: CameraConfig, within_s: float) -> None:
        """Write a stream to its file, whole or not at all.

        Args:
            config: whose stream; it has no frames waiting.
            within_s: seconds after which to give up.
        """
        path, deadline_s = self._path(config.name), time.monotonic() + within_s
        if path is None:
            return
        try:
            await self._worker.run(lambda engine: _save(engine, config, path, deadline_s), limited=False)
        except (StateError, ValueError) as error:
            _log.warning("the memory is not kept", camera=config.name, reason=str(error))
        else:
            _log.info("the memory is kept", camera=config.name, file=str(path))

    def _path(self, camera: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{camera}{_SUFFIX}"


def _load(engine: Engine, camera: str, path: Path) -> SavedStream | None:
    if not path.exists():
        return None
    saved = engine.load_state(camera, path)
    path.unlink(missing_ok=True)
    return saved


def _save(engine: Engine, config: CameraConfig, path: Path, deadline_s: float) -> None:
    frames = {stream.camera: stream.frames for stream in engine.statistics().streams}
    if frames.get(config.name, 0) < config.stream.scale_frames:
        # Its first block, if there was one, was cut short by the stop, and would be too short for ever.
        raise StateError("its first frames were still being gathered")
    engine.save_state(config.name, path, deadline_s=deadline_s)
