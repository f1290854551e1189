"""What the engine keeps of one camera: its memory, the frames that wait for its first step, and their numbering."""

from dataclasses import dataclass, field

from torch import Tensor

from .cache.state import StreamState
from .config import ResizeMode, StreamConfig
from .frames import Flag, FrameStamp
from .preprocess import Fit


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFrame:
    """A frame on its way into the model.

    Attributes:
        stamp: the frame's stamp.
        image: float32 [3, h, w] on the device.
        how: how it was fitted to the model.
        epoch, epoch_frame: number of the stream's memory, and of the frame within it.
        flags: what is known of it before the step.
        preprocess_us: microseconds that the fitting took.
    """

    stamp: FrameStamp
    image: Tensor
    how: Fit
    epoch: int
    epoch_frame: int
    flags: frozenset[Flag]
    preprocess_us: int


@dataclass(slots=True, eq=False)
class Stream:
    """One camera's stream in the model.

    Attributes:
        camera: its name.
        config: what it remembers.
        resize: how its pictures are fitted to the model.
        state: its memory, or None while it holds no storage.
        waiting: the first frames of an epoch, until there are `scale_frames` of them and they can run as one block.
        epoch: number of its memory, from 0.
        next_frame: number, within the epoch, of the next frame.
    """

    camera: str
    config: StreamConfig
    resize: ResizeMode
    state: StreamState | None = None
    waiting: list[PreparedFrame] = field(default_factory=list)
    epoch: int = 0
    next_frame: int = 0
    _last: FrameStamp | None = None

    @property
    def starting(self) -> bool:
        """Whether nothing has been committed to the memory in this epoch."""
        return self.state is None or self.state.ledger.committed == 0

    @property
    def ready(self) -> bool:
        """Whether the frames that wait can run."""
        return len(self.waiting) >= (self.config.scale_frames if self.starting else 1)

    def breaks_with(self, stamp: FrameStamp) -> bool:
        """Whether the memory cannot go on with this frame: its size is new, or its source was opened anew."""
        last = self._last
        return last is not None and (last.source_size, last.stream_epoch) != (stamp.source_size, stamp.stream_epoch)

    def add(self, stamp: FrameStamp, image: Tensor, how: Fit, preprocess_us: int) -> None:
        """Let a frame wait for its step, numbered as the next of this epoch."""
        flags = {Flag.RESET} if self.epoch and not self.next_frame else set()
        if self._last is not None and self._last.source_size != stamp.source_size:
            flags.add(Flag.SIZE_CHANGED)
        frame = PreparedFrame(stamp, image, how, self.epoch, self.next_frame, frozenset(flags), preprocess_us)
        self.waiting.append(frame)
        self.next_frame += 1
        self._last = stamp

    def take(self) -> tuple[PreparedFrame, ...]:
        """The frames that wait, to be run now."""
        taken = tuple(self.waiting)
        self.waiting.clear()
        return taken

    def restart(self) -> None:
        """Forget everything: the next frame begins a new epoch, unless this one has not begun. The storage is kept."""
        if self.next_frame:
            self.epoch += 1
        self.next_frame = 0
        if self.state is not None:
            self.state.reset()

    def free(self) -> None:
        """Give the memory's storage back, and with it all that it held. Idempotent."""
        if self.state is not None:
            self.state.free()
        self.state = None
