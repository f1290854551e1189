"""What the engine keeps of one camera: its memory, the frames that wait for their step, and their numbering.

A stream lives in epochs: each has a memory of its own. A new one begins with nothing remembered, or, when the last has
had its `epoch_frames` frames or was told to end, with the stream's own last `scale_frames` frames, which run once more
as its first block.
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
        geometry: how it was fitted to the model.
        flags: what is known of it before the step.
        preprocess_us: microseconds that the fitting took.
        epoch, epoch_frame: number of the stream's memory, and of the frame within it; right once it is taken.
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
        config: what it remembers.
        resize: how its pictures are fitted to the model.
        state: its memory, or None while it holds no storage.
        waiting: frames for the next step; the first ones of an epoch wait until there are `scale_frames` of them and
            they can run as one block.
        epoch: number of its memory, from 0.
        next_frame: number, within the epoch, of the next frame to run.
        ended: whether its epoch was told to end, and no frame has come since (see `end`).
        reset: whether the next frame is the first one published of its epoch, which is not the stream's first.
        last: stamp of the last frame that came, and how it was fitted; None before the first.
        restored: whether the memory comes from a file, and no frame has come since.
        recent: pictures that the next epoch may begin with.
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
    recent: ReplayBuffer = field(init=False)

    def __post_init__(self) -> None:
        self.recent = ReplayBuffer(self.config.scale_frames if self.config.epoch_frames else 0)

    @property
    def starting(self) -> bool:
        """Whether nothing has been committed to the memory in this epoch."""
        return self.state is None or self.state.window.committed == 0

    @property
    def ready(self) -> bool:
        """Whether the frames that wait can run."""
        return len(self.waiting) >= (self.config.scale_frames if self.starting else 1)

    @property
    def full(self) -> bool:
        """Whether no more frames may wait: one forward takes no more."""
        return len(self.waiting) >= (self.config.scale_frames if self.starting else self._run)

    @property
    def _run(self) -> int:
        if not self.config.epoch_frames or self.state is None:
            return self.config.frames_per_step
        if self.over:
            return 1  # a new epoch is begun for one frame
        # An epoch ends where it would with single frames.
        return min(self.config.frames_per_step, self.config.epoch_frames - self.state.window.committed)

    @property
    def over(self) -> bool:
        """Whether the epoch has had its frames, so that the next frame belongs to a new one (see `renew`)."""
        most = self.config.epoch_frames
        return most > 0 and self.state is not None and (self.ended or self.state.window.committed >= most)

    def breaks_with(self, stamp: FrameStamp) -> bool:
        """Whether the memory cannot go on with this frame: its size is new, or its source was opened anew.

        A memory from a file goes on with whatever connection comes first.
        """
        if self.last is None:
            return False
        last = self.last[0]
        reconnected = last.stream_epoch != stamp.stream_epoch and not self.restored
        return reconnected or last.source_size != stamp.source_size

    def add(self, stamp: FrameStamp, image: Tensor, geometry: ResizeGeometry, preprocess_us: int) -> None:
        """Let a frame wait for its step."""
        resized = self.last is not None and self.last[0].source_size != stamp.source_size
        flags = frozenset({Flag.SIZE_CHANGED} if resized else ())
        self.waiting.append(PreparedFrame(stamp, image, geometry, flags, preprocess_us))
        self.last = stamp, geometry
        self.restored = False

    def take(self) -> tuple[PreparedFrame, ...]:
        """The frames that wait, to be run now, numbered as the next of this epoch."""
        taken = tuple(self._numbered(frame) for frame in self.waiting)
        self.waiting.clear()
        return taken

    def end(self) -> bool:
        """Let the epoch be over now; without epochs, `restart`. False where none has begun: nothing happens then."""
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
            the frames to run as its first block. They have been published before, so what they give now is not.
        """
        assert self.last is not None, "an epoch that is over has had frames"
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
        """Forget everything: the next frame begins a new epoch, unless this one has not begun. The storage is kept."""
        self._forget()
        self.recent.clear()

    def free(self) -> None:
        """Give the memory's storage back, and with it all that it held. Idempotent."""
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
