"""Saves a stream to a file and restores it. The file holds the stream's memory, counters and last images.

It also holds the settings that must match when the stream is restored.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ..cache.kv_pool import KVCachePool, PoolShape
from ..cache.pose_memory import pose_layout
from ..cache.stream_cache import StreamState
from ..cache.window import CacheLayout, StreamWindow
from ..config import Crop, DType, ModelConfig, NetworkConfig, ResizeMode, StreamConfig
from ..config_diff import differences
from ..errors import StateError
from ..files.state_file import StateFile, open_state_file, write_state_file
from ..frames import FrameStamp, OutputKind, Size
from ..geometry.epochs import DepthMap
from ..model.delta_state import new_state
from .keyframe_motion import SavedView
from .preprocess import ResizeGeometry, resize_geometry
from .stream import Stream, allocate_memory
from .token_shape import TokenShape
from .trajectory import SavedTrajectory
from .window_poses import SavedPoses, restore_poses, saved_poses

SCHEMA = 2
"""Version of the file format."""

KEYFRAME_DEPTH = "keyframe_depth"
"""Name of the tensor with the depth of `SavedStream.keyframe`."""

META = torch.device("meta")
"""The device of tensors that have a shape but no data."""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The properties of a model that the contents of a stream's memory depend on.

    Attributes:
        weights: name of the weights, as published.
        network: the network's shape.
        layers: number of global blocks that run.
        dtype: number format of the model's computations.
    """

    weights: str
    network: NetworkConfig
    layers: int
    dtype: DType

    @classmethod
    def of(cls, config: ModelConfig, weights: str) -> "ModelIdentity":
        """The identity of a configured model with these weights."""
        return cls(weights, config.network, len(config.running_mixers), config.dtype)


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a stream that must match those in a file for the stream to be restored from it."""

    model: ModelIdentity
    stream: StreamConfig
    resize: ResizeMode
    crop: Crop | None = None  # missing in older files
    view: str | None = None  # see `ViewConfig.fingerprint`; missing in older files


@dataclass(frozen=True, slots=True)
class Counters:
    """A stream's counters, explained in `StreamWindow` and `Stream`."""

    committed: int
    pinned: int
    later: int
    epoch: int
    next_frame: int
    reset: bool
    carried: bool
    ended: bool = False  # missing in older files
    pinned_poses: int = 0  # scale frames in the camera head's memory; missing in older files
    demanded: bool = False  # missing in older files


@dataclass(frozen=True, slots=True)
class SavedStream:
    """The header of a state file.

    Attributes:
        schema: version of the file format.
        camera: name of the camera whose stream was saved.
        saved_unix_ns: when the memory had its last frames, in nanoseconds since 1970. Usually that is when the file was
            written. A stream that was restored and has had no frame since keeps the time of the file it came from.
        setting: the settings that must match.
        source_size, model_size, grid: sizes of the stream's frames.
        counters: the stream's counters.
        recent: number of images kept for the next epoch.
        poses: whether the camera head's memory is in the file.
        trajectory: maps the poses of the saved epoch to the trajectory's frame of reference; None without poses.
        keyframe: the last keyframe, if keyframes are chosen by motion.
        online: the poses of the last frames, where later ones are computed from these; None otherwise.
    """

    schema: int
    camera: str
    saved_unix_ns: int
    setting: Setting
    source_size: Size
    model_size: Size
    grid: tuple[int, int]
    counters: Counters
    recent: int
    poses: bool = False
    trajectory: SavedTrajectory | None = None
    keyframe: SavedView | None = None
    online: SavedPoses | None = None


@dataclass(frozen=True, slots=True)
class _Schema:
    schema: int


def save_stream(stream: Stream, model: ModelIdentity, path: Path, deadline_s: float | None) -> None:
    """Write a stream to a file, see `write_state_file`. The stream is unchanged.

    Raises:
        StateError: the stream's memory is empty, frames of it wait, or the file cannot be written by the deadline.
    """
    state = stream.state
    if state is None or stream.last is None or stream.starting:
        raise StateError(f"camera {stream.camera!r} has no memory yet")
    if stream.waiting:
        raise StateError(f"{len(stream.waiting)} frames of camera {stream.camera!r} still wait: flush it first")
    header = msgspec.json.encode(
        _saved(
            stream, state.window, Setting(model, stream.config, stream.resize, stream.crop, stream.known.fingerprint)
        )
    )
    tensors = _named(state, stream.poses)
    tensors += [(_image_key(index), levels) for index, levels in enumerate(stream.recent.levels)]
    tensors += [(_depth(number), torch.from_numpy(depth)) for number, depth in stream.trajectory.depths.items()]
    if stream.motion is not None and stream.motion.view is not None:
        tensors.append((KEYFRAME_DEPTH, torch.from_numpy(stream.motion.view.depth)))
    write_state_file(path, header.decode(), tensors, deadline_s)


def load_stream(
    stream: Stream,
    model: ModelIdentity,
    pools: tuple[KVCachePool, KVCachePool],
    image_width: int,
    path: Path,
    max_age_s: float | None = None,
) -> SavedStream:
    """Restore a stream from a file, replacing its memory.

    The stream's next frame continues the restored memory if it has the size of the saved frames, whatever connection it
    comes from.

    Returns:
        the file's header.

    Raises:
        StateError: the file cannot be read, is too old, or does not match this stream. The stream is unchanged, but
            if a tensor is unreadable or damaged, its memory is empty afterwards.
        AdmissionError: the pool has no room for the restored memory. The stream's memory is empty afterwards.
    """
    setting = Setting(model, stream.config, stream.resize, stream.crop, stream.known.fingerprint)
    with open_state_file(path) as file:
        saved = _checked(file, setting, path)
        age_s = (time.time_ns() - saved.saved_unix_ns) / 1e9
        if max_age_s is not None and age_s > max_age_s:
            raise StateError(f"{path} is {age_s:.0f} s old, expected at most {max_age_s:g} s")
        geometry = _geometry_of(saved, image_width, path)
        pool, pose_pool = pools
        layout = TokenShape.of(model.network, saved.grid).layout(stream.config)
        window, poses = _window(saved, layout, path), _pose_window(saved, stream, path)
        for name, dtype, extent in chain(_expected(pool.shape, window), _expected_poses(pose_pool.shape, poses)):
            file.check(name, dtype, extent)
        # Copied to the device before the stream is changed, because the device may have no room for them.
        names, device = [_image_key(index) for index in range(saved.recent)], pool.shape.device
        levels = [file.tensor(name, torch.uint8, _extent(geometry)).to(device) for name in names]
        depths, keyframe_depth = _depths(file, saved), _keyframe_depth(file, saved)
        _replace(stream, pools, window, poses, file)
    _resume(stream, saved, geometry, levels)
    try:
        if saved.trajectory is not None and OutputKind.POSE in stream.outputs:
            stream.trajectory.restore(saved.trajectory, depths)
            if saved.online is not None:
                restore_poses(stream.online, saved.online)
        if saved.keyframe is not None and keyframe_depth is not None and stream.motion is not None:
            stream.motion.restore(saved.keyframe, keyframe_depth)
    except ValueError as error:
        stream.restart()
        raise StateError(f"{path} is damaged: its poses cannot be read: {error}") from error
    return saved


def _saved(stream: Stream, window: StreamWindow, setting: Setting) -> SavedStream:
    assert stream.last is not None, "checked by the caller"
    stamp, geometry = stream.last
    return SavedStream(
        schema=SCHEMA,
        camera=stream.camera,
        saved_unix_ns=stream.restored_unix_ns if stream.restored else time.time_ns(),
        setting=setting,
        source_size=stamp.source_size,
        model_size=geometry.model_size,
        grid=geometry.grid,
        counters=Counters(
            window.committed,
            window.pinned,
            window.later,
            stream.epoch,
            stream.next_frame,
            stream.reset,
            stream.state is not None and stream.state.carried,
            stream.ended,
            0 if stream.poses is None else stream.poses.window.pinned,
            window.demanded,
        ),
        recent=len(stream.recent),
        poses=stream.poses is not None,
        trajectory=stream.trajectory.saved() if OutputKind.POSE in stream.outputs else None,
        online=saved_poses(stream.online) if _joins_windows(stream) else None,
        keyframe=None if stream.motion is None else stream.motion.saved(),
    )


def _checked(file: StateFile, setting: Setting, path: Path) -> SavedStream:
    try:
        schema = msgspec.json.decode(file.header, type=_Schema).schema
        if schema != SCHEMA:
            raise StateError(f"{path} has format {schema}; this version reads format {SCHEMA}")
        saved = msgspec.json.decode(file.header, type=SavedStream)
    except (msgspec.DecodeError, ValueError) as error:
        raise StateError(f"{path} cannot be read: {error}") from error
    if found := tuple(differences(saved.setting, setting)):
        raise StateError(f"{path} is for another stream", found)
    return saved


def _geometry_of(saved: SavedStream, image_width: int, path: Path) -> ResizeGeometry:
    patch_size = saved.setting.model.network.patch_size
    try:
        geometry = resize_geometry(saved.source_size, saved.setting.resize, image_width, patch_size)
    except ValueError as error:
        raise StateError(f"{path} is for another stream: {error}") from error
    if (geometry.model_size, geometry.grid) != (saved.model_size, saved.grid):
        raise StateError(
            f"{path} is for another stream: frames of {saved.source_size[0]}x{saved.source_size[1]} pixels were "
            f"resized to {saved.model_size}, but now they are resized to {geometry.model_size}"
        )
    return geometry


def _window(saved: SavedStream, layout: CacheLayout, path: Path) -> StreamWindow:
    counters = saved.counters
    pinned = range(1, layout.pinned_pages + 1) if layout.pinned_pages else range(1)
    if counters.committed < max(1, counters.pinned) or counters.pinned not in pinned or counters.later < 0:
        raise StateError(f"{path} has inconsistent counters: {counters}")
    return StreamWindow(layout, counters.committed, counters.pinned, counters.later, counters.demanded)


def _depths(file: StateFile, saved: SavedStream) -> dict[int, DepthMap]:
    # The depth maps of the trajectory's frames; not every frame has one.
    frames = () if saved.trajectory is None else saved.trajectory.frames
    return {
        number: file.tensor(_depth(number), torch.float32, frame.depth).numpy()
        for number, frame in enumerate(frames)
        if frame is not None and frame.depth is not None
    }


def _keyframe_depth(file: StateFile, saved: SavedStream) -> DepthMap | None:
    return None if saved.keyframe is None else file.tensor(KEYFRAME_DEPTH, torch.float32, saved.keyframe.size).numpy()


def _pose_window(saved: SavedStream, stream: Stream, path: Path) -> StreamWindow | None:
    if OutputKind.POSE not in stream.outputs:
        return None
    if stream.metric_windows:
        if saved.online is None:
            raise StateError(f"{path} is for another stream: it holds no poses, which this camera publishes")
        return None
    if not saved.poses:
        raise StateError(f"{path} is for another stream: it holds no memory of poses, which this camera publishes")
    layout, counters = pose_layout(stream.config), saved.counters
    if not 1 <= counters.pinned_poses <= min(counters.committed, layout.pinned_pages):
        raise StateError(f"{path} has inconsistent counters: {counters}")
    return StreamWindow(layout, counters.committed, counters.pinned_poses, counters.later, counters.demanded)


def _replace(
    stream: Stream,
    pools: tuple[KVCachePool, KVCachePool],
    window: StreamWindow,
    poses: StreamWindow | None,
    file: StateFile,
) -> None:
    stream.restart()
    stream.waiting.clear()
    if stream.state is None or stream.state.window.layout != window.layout:
        allocate_memory(stream, window.layout, pools)
    assert stream.state is not None, "allocated above"
    try:
        stream.state.window = window
        if stream.poses is not None and poses is not None:
            stream.poses.window = poses
        for name, target in _named(stream.state, stream.poses):
            target.copy_(file.tensor(name, target.dtype, target.shape))
    except BaseException:
        stream.restart()
        raise


def _resume(stream: Stream, saved: SavedStream, geometry: ResizeGeometry, levels: list[Tensor]) -> None:
    stamp = FrameStamp(stream.camera, 0, 0, 0, 0, None, saved.source_size)
    stream.epoch, stream.next_frame = saved.counters.epoch, saved.counters.next_frame
    stream.reset, stream.last, stream.restored = saved.counters.reset, (stamp, geometry), True
    stream.ended, stream.restored_unix_ns = saved.counters.ended, saved.saved_unix_ns
    if stream.state is not None:
        stream.state.carried = saved.counters.carried
    stream.recent.put(levels)


def _joins_windows(stream: Stream) -> bool:
    return stream.metric_windows and OutputKind.POSE in stream.outputs


def _extent(geometry: ResizeGeometry) -> tuple[int, int, int]:
    width, height = geometry.model_size
    return 3, height, width


def _named(state: StreamState, poses: StreamState | None) -> list[tuple[str, Tensor]]:
    # Names and views of everything that later steps can read.
    shape = state.pool.shape
    named = [
        (_tokens(index, number), part) for index in range(shape.layers) for number, part in enumerate(state.kept(index))
    ]
    for index in range(shape.states.layers):
        named += [(_state(index, number), part) for number, part in enumerate(state.states(index))]
    if poses is not None:
        for index in range(poses.pool.shape.layers):
            named += [(_poses(index, number), part) for number, part in enumerate(poses.kept(index))]
    return named


def _expected(shape: PoolShape, window: StreamWindow) -> Iterator[tuple[str, torch.dtype, tuple[int, ...]]]:
    # The names, dtypes and shapes that `_named` will have for a state with this window, before the state is allocated.
    for index in range(shape.layers):
        for number, (start, stop) in enumerate(window.kept):
            yield _tokens(index, number), shape.dtype, (2, stop - start, shape.heads, shape.head_dim)
    for number, tensor in enumerate(new_state(shape.states.config, 1, shape.states.dtype, META).tensors):
        for index in range(shape.states.layers):
            yield _state(index, number), tensor.dtype, tuple(tensor.shape[1:])


def _expected_poses(
    shape: PoolShape, window: StreamWindow | None
) -> Iterator[tuple[str, torch.dtype, tuple[int, ...]]]:
    if window is not None:
        for index in range(shape.layers):
            for number, (start, stop) in enumerate(window.kept):
                yield _poses(index, number), shape.dtype, (2, stop - start, shape.heads, shape.head_dim)


def _poses(index: int, part: int) -> str:
    return f"poses.{index}.{part}"


def _tokens(index: int, part: int) -> str:
    return f"tokens.{index}.{part}"


def _state(index: int, part: int) -> str:
    return f"state.{index}.{part}"


def _depth(number: int) -> str:
    return f"depth.{number}"


def _image_key(index: int) -> str:
    return f"recent.{index}"
