"""One camera's state in the engine: its memory, the frames that wait for their step, and their numbering.

A stream is divided into epochs, each with a memory of its own. A new epoch begins empty; or, when the last one reached
its `epoch_frames` frames or was ended on request, with the stream's last `scale_frames` frames, which run again as its
first block.
"""

from dataclasses import dataclass, field, replace

from torch import Tensor

from ..cache.stream_cache import StreamState
from ..config import ResizeMode, StreamConfig
from ..frames import Flag, FrameStamp
from .preprocess import ResizeGeometry
from .replay import ReplayBuffer


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFrame:
    """A frame on its way into the model.

    Attributes:
        stamp: the frame's stamp.
        image: float32 [3, h, w] on the device.
        geometry: how it was resized.
        flags: those known before the step.
        preprocess_us: microseconds of preprocessing.
        epoch, epoch_frame: number of the stream's memory, and of the frame within it; set by `Stream.take`.
    """

    stamp: FrameStamp
    image: Tensor
    geometry: ResizeGeometry
    flags: frozenset[Flag] = frozenset()
    preprocess_us: int = 0
    epoch: int = 0
    epoch_frame: int = 0


@dataclass(slots=True, eq=False)
class Stream:
    """One camera's stream in the model.

    Attributes:
        camera: its name.
        config: its settings.
        resize: how its frames are fitted to the model.
        state: its memory, or None while none is allocated.
        waiting: frames for the next step; the first ones of an epoch wait until `scale_frames` of them can run as one
            block.
        epoch: number of its memory, from 0.
        next_frame: number of the next frame to run within the epoch.
        ended: whether its epoch was ended on request, and no frame has arrived since (see `end`).
        reset: whether the next frame is the first one published of its epoch, and not of the stream's first epoch.
        last: stamp and geometry of the last frame that arrived; None before the first.
        restored: whether the memory was loaded from a file, and no frame has arrived since.
        restored_unix_ns: when that memory had its last frames.
        recent: images from which the next epoch may begin.
    """

    camera: str
    config: StreamConfig
    resize: ResizeMode
    state: StreamState | None = None
    waiting: list[PreparedFrame] = field(default_factory=list)
    epoch: int = 0
    next_frame: int = 0
    ended: bool = False
    reset: bool = False
    last: tuple[FrameStamp, ResizeGeometry] | None = None
    restored: bool = False
    restored_unix_ns: int = 0
    recent: ReplayBuffer = field(init=False)

    def __post_init__(self) -> None:
        self.recent = ReplayBuffer(self.config.scale_frames if self.config.epoch_frames else 0)

    @property
    def starting(self) -> bool:
        """Whether nothing has been committed to the memory in this epoch."""
        return self.state is None or self.state.window.committed == 0

    @property
    def ready(self) -> bool:
        """Whether the waiting frames can run."""
        return len(self.waiting) >= (self.config.scale_frames if self.starting else 1)

    @property
    def full(self) -> bool:
        """Whether one forward pass takes no more frames than those that wait."""
        return len(self.waiting) >= (self.config.scale_frames if self.starting else self._chunk_frames)

    @property
    def _chunk_frames(self) -> int:
        if not self.config.epoch_frames or self.state is None:
            return self.config.frames_per_step
        if self.over:
            return 1  # a new epoch begins with one new frame
        # An epoch must end where it would end with single frames.
        return min(self.config.frames_per_step, self.config.epoch_frames - self.state.window.committed)

    @property
    def over(self) -> bool:
        """Whether the epoch is complete, so that the next frame belongs to a new one (see `renew`)."""
        most = self.config.epoch_frames
        return most > 0 and self.state is not None and (self.ended or self.state.window.committed >= most)

    def breaks_with(self, stamp: FrameStamp) -> bool:
        """Whether this frame cannot continue the memory: its size changed, or its source was reconnected.

        A memory loaded from a file is continued by any connection.
        """
        if self.last is None:
            return False
        last = self.last[0]
        reconnected = last.stream_epoch != stamp.stream_epoch and not self.restored
        return reconnected or last.source_size != stamp.source_size

    def add(self, stamp: FrameStamp, image: Tensor, geometry: ResizeGeometry, preprocess_us: int) -> None:
        """Add a frame to those that wait."""
        resized = self.last is not None and self.last[0].source_size != stamp.source_size
        flags = frozenset({Flag.SIZE_CHANGED} if resized else ())
        self.waiting.append(PreparedFrame(stamp, image, geometry, flags, preprocess_us))
        self.last = stamp, geometry
        self.restored = False

    def take(self) -> tuple[PreparedFrame, ...]:
        """Take the waiting frames, numbered as the next ones of this epoch."""
        taken = tuple(self._numbered(frame) for frame in self.waiting)
        self.waiting.clear()
        return taken

    def end(self) -> bool:
        """End the epoch; without `epoch_frames`, `restart`. Returns False, and does nothing, if none has begun."""
        if self.starting:
            return False
        if self.config.epoch_frames:
            self.ended = True
        else:
            self.restart()
        return True

    def renew(self) -> tuple[PreparedFrame, ...]:
        """Begin a new epoch from this one's last frames.

        Returns:
            the frames to run as its first block. They were published before, so their results now are not.
        """
        assert self.last is not None, "a complete epoch has frames"
        stamp, geometry = self.last
        images = self.recent.images()
        self._forget(carry=self.config.carry_state)
        frames = (
            PreparedFrame(stamp, image, geometry, epoch=self.epoch, epoch_frame=number)
            for number, image in enumerate(images)
        )
        self.next_frame = len(images)
        return tuple(frames)

    def restart(self) -> None:
        """Clear the memory: the next frame begins a new epoch, unless this one has not begun. Keeps the storage."""
        self._forget()
        self.recent.clear()

    def free(self) -> None:
        """Free the memory's storage. Idempotent."""
        if self.state is not None:
            self.state.free()
        self.state = None

    def _numbered(self, frame: PreparedFrame) -> PreparedFrame:
        flags = frame.flags | {Flag.RESET} if self.reset else frame.flags
        numbered = replace(frame, epoch=self.epoch, epoch_frame=self.next_frame, flags=flags)
        self.reset = False
        self.next_frame += 1
        self.recent.add(frame.image)
        return numbered

    def _forget(self, *, carry: bool = False) -> None:
        if self.next_frame:
            self.epoch += 1
            self.reset = True
        self.next_frame = 0
        self.ended = False
        if self.state is not None:
            self.state.reset(carry=carry)
