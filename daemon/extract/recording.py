"""The recording to extract: probed first, then read by the service's own capture process, in order and without gaps."""

from collections.abc import Callable

import anyio

from retinad.pipeline.capture.camera import Camera, CameraState, CameraStatus
from retinad.pipeline.capture.probe import probe
from retinad.pipeline.capture.starts import CaptureStarts
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.errors import SourceError
from retinad.pipeline.frame_queue import FrameCounters, FrameQueue
from retinad.pipeline.frames import Frame
from retinad.pipeline.sources.reader import SourceInfo
from retinad.pipeline.sources.redact import mask

from ..exit_codes import ExitCode, JobError
from .request import Extraction


async def probe_recording(wanted: Extraction) -> SourceInfo:
    """Open the recording once, to learn its size and its number of frames.

    Raises:
        JobError: it cannot be opened, or is a live source.
    """
    try:
        live = wanted.is_live
    except SourceError as error:
        raise JobError(ExitCode.NO_INPUT, f"{error.fault}: {error}") from None
    if live:
        raise _endless(wanted)
    if wanted.is_fifo:
        text = f"{wanted.source} is a FIFO, and `retinad extract` reads its input twice: write it to a file first"
        raise JobError(ExitCode.USAGE, mask(text, wanted.source))
    info = await probe(wanted.camera(wanted.stream), CaptureStarts())
    if isinstance(info, SourceError):
        raise JobError(ExitCode.NO_INPUT, mask(f"{info.fault}: {info}", wanted.source))
    if info.live or not info.finite:
        raise _endless(wanted)
    return info


def _endless(wanted: Extraction) -> JobError:
    text = f"{wanted.source} has no end: `retinad extract` takes recordings; for live sources use `retinad run`"
    return JobError(ExitCode.USAGE, mask(text, wanted.source))


class RecordingReader:
    """Reads a recording and gathers the frames of each step. Used on the event loop only.

    Args:
        config: the recording, as a lossless camera.
        next_seq: `source_seq` of the first frame to hand out; frames before it are read and skipped.
        on_open: called before the first frame, with the number of frames or None if it is not known.
        on_log: called with each line that the decoder prints.

    Attributes:
        queue: the frames that wait for a step.
        next_seq: `source_seq` of the frame after the last one handed out.
        ended: the camera's last state, or None while it runs.
    """

    def __init__(
        self,
        config: CameraConfig,
        next_seq: int,
        on_open: Callable[[int | None], None],
        on_log: Callable[[str], None],
    ) -> None:
        self.queue = FrameQueue(
            config.mode, config.waiting_frames, config.frames_per_step, FrameCounters(), self._wake, 0
        )
        self.next_seq = next_seq
        self.ended: CameraStatus | None = None
        self._camera = Camera(config, self.queue, self._on_status, on_log=on_log)
        self._on_open = on_open
        self._opened = False
        self._stopped = False
        self._changed = anyio.Event()
        self._read_seq = -1

    @property
    def is_at_end(self) -> bool:
        """Whether the whole recording was read."""
        return not self._stopped and self.ended is not None and self.ended.state is CameraState.ENDED

    async def capture(self) -> None:
        """Read until the recording ends or fails."""
        self.ended = await self._camera.run()
        self._wake()

    def stop(self) -> None:
        """Hand out no more frames."""
        self._stopped = True
        self._wake()

    async def gather(self) -> list[Frame]:
        """The frames of the next step: fewer at the recording's end, none when there are no more.

        Raises:
            JobError: the recording is shorter than it was when an earlier run extracted it.
        """
        frames: list[Frame] = []
        while len(frames) < self.queue.frames_per_step:
            if self._stopped:
                return []
            frame = self.queue.take_nowait()
            if frame is None:
                if self.ended is not None:
                    break
                self._changed = anyio.Event()
                await self._changed.wait()
            else:
                self._read_seq = frame.stamp.source_seq
                if self._read_seq >= self.next_seq:
                    frames.append(frame)
            del frame
        if frames:
            self.next_seq = frames[-1].stamp.source_seq + 1
        elif self.is_at_end and self._read_seq + 1 < self.next_seq:
            text = f"the recording had at least {self.next_seq} frames before and now has fewer"
            raise JobError(ExitCode.NO_INPUT, text)
        return frames

    def _on_status(self, status: CameraStatus) -> None:
        if status.state is CameraState.RUNNING and status.info is not None and not self._opened:
            self._opened = True  # the first frame is not in the queue yet
            self._on_open(status.info.frame_count)

    def _wake(self) -> None:
        self._changed.set()
