"""One camera's state in the engine: its memory, the frames that wait for their step, and the numbering of frames.

A stream is divided into epochs, each with a memory of its own. If the previous epoch reached its `epoch_frames` frames
or was ended on request, the new epoch begins with the stream's last `scale_frames` frames, which run again as its first
block. Otherwise the new epoch begins empty.
"""

from dataclasses import dataclass, field, replace

from torch import Tensor

from ..cache.kv_pool import KVCachePool
from ..cache.pose_memory import pose_layout
from ..cache.stream_cache import StreamState
from ..cache.window import CacheLayout, StreamWindow
from ..config import Crop, ResizeMode, StreamConfig
from ..frames import MAP_KINDS, Features, Flag, FrameStamp, OutputKind
from ..geometry.online_poses import OnlinePoses
from ..view_config import ViewConfig
from .keyframe_motion import KeyframeMotion
from .preprocess import ResizeGeometry
from .replay import ReplayBuffer
from .trajectory import Trajectory
from .unit import StreamUnit
from .view import StreamView


@dataclass(frozen=True, slots=True, eq=False)
class PreparedFrame:
    """A frame on its way into the model.

    Attributes:
        stamp: the frame's stamp.
        image: float32 [3, h, w] on the device.
        geometry: how the frame was resized.
        flags: flags that are known before the step.
        preprocess_us: microseconds that preprocessing took.
        epoch, epoch_frame: number of the epoch, and number of the frame within the epoch; set by `Stream.take`.
        wanted: the kinds of outputs to compute; set by `Stream.take`.
    """

    stamp: FrameStamp
    image: Tensor
    geometry: ResizeGeometry
    flags: frozenset[Flag] = frozenset()
    preprocess_us: int = 0
    epoch: int = 0
    epoch_frame: int = 0
    wanted: frozenset[OutputKind] = frozenset()


@dataclass(slots=True, eq=False)
class Stream:
    """One camera's stream in the model.

    Attributes:
        camera: the camera's name.
        config: the stream's settings.
        resize: how frames are fitted to the model's image size.
        crop: the part of each captured frame that is used (see `CameraConfig`), or None for the whole frame.
        outputs: the kinds of outputs that are published.
        map_every, map_stride: see `OutputConfig`.
        metric_windows: whether the network estimates the poses of each frame's window, in metres (HorizonStream).
        state: the stream's memory, or None while none is allocated.
        poses: the camera head's memory, or None while none is allocated; never allocated if no pose is published, or
            with `metric_windows`.
        waiting: frames for the next step. The first frames of an epoch wait until `scale_frames` of them can run as one
            block.
        epoch: number of the epoch, from 0.
        next_frame: number, within the epoch, of the next frame to run.
        ended: whether the epoch was ended on request, and no frame has arrived since (see `end`).
        reset: whether the next frame is the first published one of its epoch; always false in the stream's first epoch.
        last: stamp and geometry of the last frame that arrived; None before the first frame.
        restored: whether the memory was loaded from a file, and no frame has arrived since.
        restored_unix_ns: when the restored memory had its last frames, in nanoseconds since 1970.
        reopened: whether the source is reopened on purpose, and no frame has arrived since.
        recent: images with which the next epoch may begin.
        known: what is known of the camera's view.
        view: applies it to frames and records; None if nothing is known of the pictures.
        online: with `metric_windows`, the poses of the last frames, from which those of later ones are computed.
        trajectory: maps poses, depths and points of all epochs to one frame of reference.
        motion: chooses keyframes by motion; None if they are chosen by their number only.
    """

    camera: str
    config: StreamConfig
    resize: ResizeMode
    crop: Crop | None = None
    outputs: frozenset[OutputKind] = frozenset((OutputKind.FEATURES,))
    map_every: int = 1
    map_stride: int = 1
    known: ViewConfig = field(default_factory=ViewConfig)
    view: StreamView | None = None
    metric_windows: bool = False
    state: StreamState | None = None
    poses: StreamState | None = None
    waiting: list[PreparedFrame] = field(default_factory=list)
    epoch: int = 0
    next_frame: int = 0
    ended: bool = False
    reset: bool = False
    last: tuple[FrameStamp, ResizeGeometry] | None = None
    restored: bool = False
    restored_unix_ns: int = 0
    reopened: bool = False
    recent: ReplayBuffer = field(init=False)
    online: OnlinePoses = field(init=False)
    trajectory: Trajectory = field(init=False)
    motion: KeyframeMotion | None = field(init=False)

    def __post_init__(self) -> None:
        shared = self.config.scale_frames if self.config.epoch_frames else 0
        self.recent = ReplayBuffer(shared)
        self.online = OnlinePoses(self.config.window)
        shared = shared if OutputKind.POSE in self.outputs else 0
        unit = StreamUnit.of(self.known, is_metric=self.metric_windows)
        self.trajectory = Trajectory(shared, self.map_stride, unit)
        threshold_px = self.config.keyframe_flow_px
        self.motion = KeyframeMotion(threshold_px, self.map_stride) if threshold_px else None

    @property
    def starting(self) -> bool:
        """Whether no frame has been committed to the memory in this epoch yet."""
        return self.state is None or self.state.window.committed == 0

    @property
    def ready(self) -> bool:
        """Whether the waiting frames can run."""
        return len(self.waiting) >= (self.config.scale_frames if self.starting else 1)

    @property
    def full(self) -> bool:
        """Whether the waiting frames are as many as one forward pass takes."""
        return len(self.waiting) >= (self.config.scale_frames if self.starting else self._chunk_frames)

    @property
    def _chunk_frames(self) -> int:
        if self.state is not None and self.state.window.growing:
            return 1  # frames that run together have equally long windows
        if not self.config.epoch_frames or self.state is None:
            return self.config.frames_per_step
        if self.over:
            return 1  # a new epoch begins with one new frame
        # An epoch must end at the same frame as if frames were run one by one.
        return min(self.config.frames_per_step, self.config.epoch_frames - self.state.window.committed)

    @property
    def over(self) -> bool:
        """Whether the epoch is complete, so that the next frame belongs to a new one (see `renew`)."""
        most = self.config.epoch_frames
        return most > 0 and self.state is not None and (self.ended or self.state.window.committed >= most)

    def breaks_with(self, stamp: FrameStamp) -> bool:
        """Whether this frame cannot continue the memory, because its size changed or its source was reconnected.

        If the memory was loaded from a file, or the source was reopened on purpose, frames of any connection can
        continue it.
        """
        if self.last is None:
            return False
        last = self.last[0]
        reconnected = last.stream_epoch != stamp.stream_epoch and not (self.restored or self.reopened)
        return reconnected or last.source_size != stamp.source_size

    def add(self, stamp: FrameStamp, image: Tensor, geometry: ResizeGeometry, preprocess_us: int) -> None:
        """Add a frame to the waiting ones."""
        resized = self.last is not None and self.last[0].source_size != stamp.source_size
        flags = frozenset({Flag.SIZE_CHANGED} if resized else ())
        self.waiting.append(PreparedFrame(stamp, image, geometry, flags, preprocess_us))
        self.last = stamp, geometry
        self.restored = self.reopened = False

    def take(self) -> tuple[PreparedFrame, ...]:
        """Take the waiting frames, and number them as the next ones of this epoch."""
        taken = tuple(self._numbered(frame) for frame in self.waiting)
        self.waiting.clear()
        return taken

    def observe(self, features: Features) -> Features:
        """Take note of a frame that has run, which may make the next one a keyframe.

        Args:
            features: the frame's record, with its pose in the epoch's own frame of reference.

        Returns:
            the record with its `keyframe_flow_px`, and with what is known of the view.
        """
        if self.view is not None:
            features = self.view.of(features.stamp).told(features, self.map_stride)
        if self.motion is None:
            return features
        flow_px = self.motion.measure(features)
        if self.motion.decide(features, flow_px):
            self.demand_keyframe()
        return replace(features, keyframe_flow_px=flow_px)

    def demand_keyframe(self) -> None:
        """Make the next frame a keyframe."""
        for memory in (self.state, self.poses):
            if memory is not None:
                memory.window = replace(memory.window, demanded=True)

    def end(self) -> bool:
        """End the epoch; without `epoch_frames`, `restart`. If no epoch has begun, do nothing and return False."""
        if self.starting:
            return False
        if self.config.epoch_frames:
            self.ended = True
        else:
            self.restart()
        return True

    def renew(self) -> tuple[PreparedFrame, ...]:
        """Begin a new epoch with the last frames of the current one.

        Returns:
            the frames to run as the new epoch's first block. They were published before, so they must not be published
            again.
        """
        assert self.last is not None, "a complete epoch has frames"
        stamp, geometry = self.last
        images = self.recent.images()
        self._forget(carry=self.config.carry_state)
        frames = (
            PreparedFrame(stamp, image, geometry, epoch=self.epoch, epoch_frame=number, wanted=self.outputs)
            for number, image in enumerate(images)
        )
        self.next_frame = len(images)
        return tuple(frames)

    def restart(self) -> None:
        """Clear the memory but keep its storage. If the epoch has begun, the next frame begins a new one."""
        self._forget()
        self.recent.clear()
        self.trajectory.restart(self.epoch)

    def free(self) -> None:
        """Free the memory's storage. Idempotent."""
        for memory in (self.state, self.poses):
            if memory is not None:
                memory.free()
        self.state = self.poses = None

    def _numbered(self, frame: PreparedFrame) -> PreparedFrame:
        flags = frame.flags | {Flag.RESET} if self.reset else frame.flags
        has_maps = self.next_frame % self.map_every == 0 or (self.motion is not None and self._keyframe_is_next)
        wanted = self.outputs if has_maps else self.outputs - MAP_KINDS
        numbered = replace(frame, epoch=self.epoch, epoch_frame=self.next_frame, flags=flags, wanted=wanted)
        self.reset = False
        self.next_frame += 1
        self.recent.add(frame.image)
        return numbered

    @property
    def _keyframe_is_next(self) -> bool:
        return self.state is None or self.state.window.keyframe_is_next

    def _forget(self, *, carry: bool = False) -> None:
        if self.next_frame:
            self.epoch += 1
            self.reset = True
        self.next_frame = 0
        self.ended = False
        if self.state is not None:
            self.state.reset(carry=carry)
        if self.poses is not None:
            self.poses.reset()
        if self.motion is not None:
            self.motion.restart()
        self.online.restart()


def allocate_memory(stream: Stream, layout: CacheLayout, pools: tuple[KVCachePool, KVCachePool]) -> None:
    """Replace a stream's memory by an empty one, with room for poses if the stream publishes them.

    Args:
        stream: the stream.
        layout: the layout of its tokens.
        pools: storage of the streams' KV caches, and of the camera head's.

    Raises:
        AdmissionError: a pool has no room. The stream then has no memory.
    """
    pool, pose_pool = pools
    stream.free()
    stream.state = StreamState.allocate(pool, StreamWindow(layout))
    if OutputKind.POSE in stream.outputs and not stream.metric_windows:
        try:
            stream.poses = StreamState.allocate(pose_pool, StreamWindow(pose_layout(stream.config)))
        except BaseException:
            stream.free()
            raise
