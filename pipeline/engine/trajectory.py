"""A stream's trajectory: its poses, depths and points in one frame of reference and unit, across epochs.

Each epoch of the model has a frame of reference and a unit of its own. An epoch that begins with the last frames of the
previous one is aligned to it over these frames; the alignments add up to the map to the trajectory's first epoch. An
epoch that begins empty shares no frame, so it begins a new trajectory.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..frames import Alignment, Features, Geometry, Numbers, Output, OutputKind, OutputTensor
from ..geometry.epochs import DepthMap, SharedFrame, align
from ..geometry.pose import Floats, intrinsics, quaternion_from_rotation, source_intrinsics, world_from_camera
from ..geometry.similarity import Similarity
from .pose_outputs import ENCODING, INTRINSICS, SOURCE_INTRINSICS, WORLD_FROM_CAMERA

_PIXELS = 4096
"""Approximate number of pixels that are kept of a depth map for the alignment."""


@dataclass(frozen=True, slots=True, eq=False)
class PosedFrame:
    """A frame in its epoch's frame of reference and unit.

    Attributes:
        pose: [3, 4] float64, world from camera.
        depth: some pixels of the depth map, or None.
        keyframe: whether it is a keyframe.
    """

    pose: Floats
    depth: DepthMap | None
    keyframe: bool


@dataclass(frozen=True, slots=True)
class SavedFrame:
    """A frame in a state file, see `PosedFrame`.

    Attributes:
        pose: the 12 numbers of the pose, row by row.
        keyframe: whether it is a keyframe.
        depth: rows and columns of its depth map, which is stored beside; None without one.
    """

    pose: tuple[float, ...]
    keyframe: bool
    depth: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class SavedTrajectory:
    """A trajectory in a state file, see `Trajectory`; `to_world` is as `Similarity.numbers` returns it."""

    world_epoch: int
    to_world: tuple[float, ...]
    residual: Alignment
    frames: tuple[SavedFrame | None, ...]


@dataclass(slots=True, eq=False)
class Trajectory:
    """One stream's trajectory.

    Attributes:
        shared: number of last frames that are kept for the alignment of the next epoch.
        map_stride: see `OutputConfig.map_stride`.
        unit: name of the unit of length, see `Geometry`.
        world_epoch: the epoch in whose frame of reference and unit everything is published.
        to_world: maps the present epoch's frame of reference to that of `world_epoch`.
        residual: how well the present epoch's alignment fits; None for the first epoch.
    """

    shared: int
    map_stride: int = 1
    unit: str = "stream"
    world_epoch: int = 0
    to_world: Similarity = field(default_factory=Similarity.identity)
    residual: Alignment = field(default_factory=Alignment)
    recent: deque[PosedFrame | None] = field(default_factory=lambda: deque[PosedFrame | None]())

    def restart(self, epoch: int) -> None:
        """Begin a new trajectory with this epoch."""
        self.world_epoch = epoch
        self.to_world, self.residual = Similarity.identity(), Alignment()
        self.recent.clear()

    def saved(self) -> SavedTrajectory:
        """The trajectory without its depth maps, for a state file."""
        frames = tuple(None if frame is None else _saved(frame) for frame in self.recent)
        return SavedTrajectory(self.world_epoch, tuple(self.to_world.numbers()), self.residual, frames)

    @property
    def depths(self) -> dict[int, DepthMap]:
        """The depth maps that are kept, by the number of their frame in `recent`."""
        frames = {number: frame for number, frame in enumerate(self.recent) if frame is not None}
        return {number: frame.depth for number, frame in frames.items() if frame.depth is not None}

    def restore(self, saved: SavedTrajectory, depths: Mapping[int, DepthMap]) -> None:
        """Continue a saved trajectory.

        Raises:
            ValueError: its numbers are not those of a similarity, or of poses.
        """
        to_world = Similarity.from_numbers(list(saved.to_world))
        recent = [
            None
            if frame is None
            else PosedFrame(np.array(frame.pose).reshape(3, 4), depths.get(number), frame.keyframe)
            for number, frame in enumerate(saved.frames)
        ]
        self.world_epoch, self.to_world, self.residual = saved.world_epoch, to_world, saved.residual
        self.recent.clear()
        for frame in recent:
            self._remember(frame)

    def geometry(self) -> Geometry:
        """What the numbers that are published now mean."""
        mapped = self.to_world
        alignment = Alignment(
            scale=mapped.scale,
            rotation=_four(quaternion_from_rotation(mapped.rotation)),
            translation=_three(mapped.translation),
            residual=self.residual.residual,
            rotation_residual_degrees=self.residual.rotation_residual_degrees,
            reason=self.residual.reason,
        )
        return Geometry(alignment, self.unit, self.map_stride, self.world_epoch)

    def publish(self, features: Features) -> Features:
        """Map a record from its epoch's frame of reference to the trajectory's, and remember the frame.

        Returns:
            the record with its `geometry`, and with the tensors derived from the pose encoding. Numbers without a value
            are NaN. A record that has features only is returned as it is.
        """
        if all(tensor.output.kind is OutputKind.FEATURES for tensor in features.tensors):
            return features
        self._remember(posed_frame(features))
        published: list[OutputTensor] = []
        for tensor in features.tensors:
            if tensor.output is ENCODING:
                published += (tensor, *self._derived(tensor.data, features))
            else:
                published.append(self._mapped(tensor))
        return replace(features, tensors=tuple(published), geometry=self.geometry())

    def begin_epoch(self, features: Sequence[Features]) -> None:
        """Align a new epoch to the present one, over the frames that both have.

        Args:
            features: the first frames of the new epoch. They are the last ones of the present epoch, in the same order.
        """
        if not self.shared:
            return
        frames = [posed_frame(record) for record in features]
        count = min(len(frames), len(self.recent))
        pairs = zip(list(self.recent)[len(self.recent) - count :], frames[len(frames) - count :], strict=True)
        both = [(old, new) for old, new in pairs if old is not None and new is not None]
        if both:
            shared = [SharedFrame(old.pose, new.pose, old.depth, new.depth) for old, new in both]
            keyframes = [number for number, (old, _) in enumerate(both) if old.keyframe]
            found = align(shared, keyframes[-1] if keyframes else len(shared) - 1)
            self.to_world = self.to_world.after(found.similarity)
            residual = found.centre_residual if np.isfinite(found.centre_residual) else None
            self.residual = Alignment(residual=residual, rotation_residual_degrees=found.degrees, reason=found.reason)
        else:
            self.residual = Alignment(reason="the epochs share no frame with a pose")
        self.recent.clear()
        for frame in frames:
            self._remember(frame)

    def _remember(self, frame: PosedFrame | None) -> None:
        if self.shared:
            self.recent.append(frame)
            while len(self.recent) > self.shared:
                self.recent.popleft()

    def _derived(self, encoding: Numbers, features: Features) -> list[OutputTensor]:
        numbers = encoding.astype(np.float64)
        pose, camera = world_from_camera(numbers), intrinsics(numbers, *features.model_size)
        to_source = np.array(features.to_source)
        return [
            _tensor(WORLD_FROM_CAMERA, None if pose is None else self.to_world.pose(pose)),
            _tensor(INTRINSICS, camera),
            _tensor(SOURCE_INTRINSICS, None if camera is None else source_intrinsics(camera, to_source)),
        ]

    def _mapped(self, tensor: OutputTensor) -> OutputTensor:
        output = tensor.output
        if self.residual == Alignment() or output.name not in (OutputKind.DEPTH, OutputKind.POINTS):
            return tensor
        with np.errstate(over="ignore", invalid="ignore"):
            data = tensor.data.astype(np.float64)
            if output.name == OutputKind.DEPTH:
                data = self.to_world.scale * data
            else:
                data = self.to_world.points(data.reshape(-1, 3)).reshape(data.shape)
            return OutputTensor(output, data.astype(tensor.data.dtype))


def posed_frame(features: Features) -> PosedFrame | None:
    """A frame as it is kept for an alignment; None if it has no pose, or one that is not finite."""
    by_name = {tensor.name: tensor.data for tensor in features.tensors}
    encoding, depth = by_name.get(ENCODING.name), by_name.get(OutputKind.DEPTH.value)
    pose = None if encoding is None else world_from_camera(encoding)
    if pose is None:
        return None
    if depth is None:
        return PosedFrame(pose, None, features.keyframe)
    stride = max(1, round((depth.size / _PIXELS) ** 0.5))
    return PosedFrame(pose, depth[::stride, ::stride].astype(np.float32), features.keyframe)


def _saved(frame: PosedFrame) -> SavedFrame:
    depth = frame.depth
    size = None if depth is None else (depth.shape[0], depth.shape[1])
    return SavedFrame(tuple(frame.pose.ravel().tolist()), frame.keyframe, size)


def _tensor(output: Output, value: Floats | None) -> OutputTensor:
    data = np.full(output.shape, np.nan, np.float32) if value is None else value.astype(np.float32)
    return OutputTensor(output, np.ascontiguousarray(data))


def _three(numbers: Floats) -> tuple[float, float, float]:
    x, y, z = map(float, numbers)
    return x, y, z


def _four(numbers: Floats) -> tuple[float, float, float, float]:
    x, y, z, w = map(float, numbers)
    return x, y, z, w
