"""A stream as a file: its memory, its place in its epoch, its last pictures, and what must be the same to go on."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ..cache.kv_pool import KVCachePool, PoolShape
from ..cache.stream_cache import StreamState
from ..cache.window import CacheLayout, StreamWindow
from ..config import DType, ModelConfig, NetworkConfig, ResizeMode, StreamConfig
from ..config_diff import differences
from ..errors import StateError
from ..files.state_file import StateFile, open_state_file, write_state_file
from ..frames import FrameStamp, Size
from ..model.delta_state import new_state
from .outputs import TokenShape
from .preprocess import ResizeGeometry, resize_geometry
from .stream import Stream

SCHEMA = 2
"""Number of the files' form."""

META = torch.device("meta")
"""Where tensors have shapes only."""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What of a model a memory depends on.

    Attributes:
        weights: their name, as published.
        network: its shape.
        layers: global blocks that run.
        dtype: number format that it computes in.
    """

    weights: str
    network: NetworkConfig
    layers: int
    dtype: DType

    @classmethod
    def of(cls, config: ModelConfig, weights: str) -> "ModelIdentity":
        """Of a configured model, whose weights are called so."""
        return cls(weights, config.network, len(config.running_mixers), config.dtype)


@dataclass(frozen=True, slots=True)
class Setting:
    """What must be the same for a stream to go on from a file."""

    model: ModelIdentity
    stream: StreamConfig
    resize: ResizeMode


@dataclass(frozen=True, slots=True)
class Counters:
    """Where a stream stands; see `StreamWindow` and `Stream`."""

    committed: int
    pinned: int
    later: int
    epoch: int
    next_frame: int
    reset: bool
    carried: bool
    ended: bool = False  # files of before have none


@dataclass(frozen=True, slots=True)
class SavedStream:
    """The header of a file.

    Attributes:
        schema: number of its form.
        camera: whose stream it was.
        saved_unix_ns: when it was written.
        setting: what must be the same.
        source_size, model_size, grid: of its pictures.
        counters: where it stood.
        recent: pictures that are kept for the next epoch.
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


@dataclass(frozen=True, slots=True)
class _Schema:
    schema: int


def save_stream(stream: Stream, model: ModelIdentity, path: Path, deadline_s: float | None) -> None:
    """Write a stream to a file, see `write_state_file`. The stream goes on as if nothing had been.

    Raises:
        StateError: it remembers nothing yet, frames of it still wait, or the file cannot be written by the deadline.
    """
    state = stream.state
    if state is None or stream.last is None or stream.starting:
        raise StateError(f"camera {stream.camera!r} remembers nothing yet")
    if stream.waiting:
        raise StateError(f"{len(stream.waiting)} frames of camera {stream.camera!r} wait for their step: flush first")
    header = msgspec.json.encode(_saved(stream, state.window, Setting(model, stream.config, stream.resize)))
    tensors = _named(state)
    tensors += [(_picture(index), levels) for index, levels in enumerate(stream.recent.levels)]
    write_state_file(path, header.decode(), tensors, deadline_s)


def load_stream(stream: Stream, model: ModelIdentity, pool: KVCachePool, image_width: int, path: Path) -> SavedStream:
    """Let a stream go on from a file, whatever it remembered before.

    Its next frame goes on from there if it has the same size, whatever connection it comes from.

    Returns:
        what the file says of itself.

    Raises:
        StateError: the file cannot be read, or it is not for this stream. Nothing has changed, unless a tensor cannot
            be read or is not what was written: then the stream remembers nothing.
        AdmissionError: the pool has no room for it. The stream remembers nothing then.
    """
    setting = Setting(model, stream.config, stream.resize)
    with open_state_file(path) as file:
        saved = _checked(file, setting, path)
        geometry = _fitted(saved, image_width, path)
        layout = TokenShape.of(model.network, saved.grid).layout(stream.config)
        window = _window(saved, layout, path)
        for name, dtype, extent in _expected(pool.shape, window):
            file.check(name, dtype, extent)
        # On the device before the stream is touched: there may be no room for them.
        names, device = [_picture(index) for index in range(saved.recent)], pool.shape.device
        levels = [file.tensor(name, torch.uint8, _extent(geometry)).to(device) for name in names]
        _replace(stream, pool, window, file)
    _resume(stream, saved, geometry, levels)
    return saved


def _saved(stream: Stream, window: StreamWindow, setting: Setting) -> SavedStream:
    assert stream.last is not None, "checked by the caller"
    stamp, geometry = stream.last
    return SavedStream(
        schema=SCHEMA,
        camera=stream.camera,
        saved_unix_ns=time.time_ns(),
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
        ),
        recent=len(stream.recent),
    )


def _checked(file: StateFile, setting: Setting, path: Path) -> SavedStream:
    try:
        schema = msgspec.json.decode(file.header, type=_Schema).schema
        if schema != SCHEMA:
            raise StateError(f"{path} is of form {schema}, this program reads {SCHEMA}")
        saved = msgspec.json.decode(file.header, type=SavedStream)
    except (msgspec.DecodeError, ValueError) as error:
        raise StateError(f"{path} cannot be read: {error}") from error
    if found := tuple(differences(saved.setting, setting)):
        raise StateError(f"{path} is for another stream", found)
    return saved


def _fitted(saved: SavedStream, image_width: int, path: Path) -> ResizeGeometry:
    patch_size = saved.setting.model.network.patch_size
    try:
        geometry = resize_geometry(saved.source_size, saved.setting.resize, image_width, patch_size)
    except ValueError as error:
        raise StateError(f"{path} is for another stream: {error}") from error
    if (geometry.model_size, geometry.grid) != (saved.model_size, saved.grid):
        raise StateError(
            f"{path} is for another stream: the model saw pictures of {saved.source_size[0]}x{saved.source_size[1]} "
            f"pixels at {saved.model_size}, now it sees them at {geometry.model_size}"
        )
    return geometry


def _window(saved: SavedStream, layout: CacheLayout, path: Path) -> StreamWindow:
    counters = saved.counters
    pinned = range(1, layout.pinned_pages + 1) if layout.pinned_pages else range(1)
    if counters.committed < max(1, counters.pinned) or counters.pinned not in pinned or counters.later < 0:
        raise StateError(f"{path} contradicts itself: {counters}")
    return StreamWindow(layout, counters.committed, counters.pinned, counters.later)


def _replace(stream: Stream, pool: KVCachePool, window: StreamWindow, file: StateFile) -> None:
    stream.restart()
    stream.waiting.clear()
    if stream.state is None or stream.state.window.layout != window.layout:
        stream.free()
        stream.state = StreamState.allocate(pool, StreamWindow(window.layout))
    try:
        stream.state.window = window
        for name, target in _named(stream.state):
            target.copy_(file.tensor(name, target.dtype, target.shape))
    except BaseException:
        stream.state.reset()
        raise


def _resume(stream: Stream, saved: SavedStream, geometry: ResizeGeometry, levels: list[Tensor]) -> None:
    stamp = FrameStamp(stream.camera, 0, 0, 0, 0, None, saved.source_size)
    stream.epoch, stream.next_frame = saved.counters.epoch, saved.counters.next_frame
    stream.reset, stream.last, stream.restored = saved.counters.reset, (stamp, geometry), True
    stream.ended = saved.counters.ended
    if stream.state is not None:
        stream.state.carried = saved.counters.carried
    stream.recent.put(levels)


def _extent(geometry: ResizeGeometry) -> tuple[int, int, int]:
    width, height = geometry.model_size
    return 3, height, width


def _named(state: StreamState) -> list[tuple[str, Tensor]]:
    # Views of all that later steps can see.
    shape = state.pool.shape
    named = [
        (_tokens(index, number), part) for index in range(shape.layers) for number, part in enumerate(state.kept(index))
    ]
    for index in range(shape.states.layers):
        named += [(_state(index, number), part) for number, part in enumerate(state.states(index))]
    return named


def _expected(shape: PoolShape, window: StreamWindow) -> Iterator[tuple[str, torch.dtype, tuple[int, ...]]]:
    # What `_named` gives of a state with this window, before there is one.
    for index in range(shape.layers):
        for number, (start, stop) in enumerate(window.kept):
            yield _tokens(index, number), shape.dtype, (2, stop - start, shape.heads, shape.head_dim)
    for number, tensor in enumerate(new_state(shape.states.config, 1, shape.states.dtype, META).tensors):
        for index in range(shape.states.layers):
            yield _state(index, number), tensor.dtype, tuple(tensor.shape[1:])


def _tokens(index: int, part: int) -> str:
    return f"tokens.{index}.{part}"


def _state(index: int, part: int) -> str:
    return f"state.{index}.{part}"


def _picture(index: int) -> str:
    return f"recent.{index}"
