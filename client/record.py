"""Records: one typed value per message, with header fields as attributes and tensors as numpy arrays."""

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from .gaps import Gap
from .points import DepthView, FloatArray, points_of
from .wire import (
    EndHeader,
    FeaturesHeader,
    HelloHeader,
    Message,
    RecordFields,
    StatusHeader,
    TensorHeader,
)

Array = npt.NDArray[np.generic]


class Tensors(Mapping[str, Array]):
    """A read-only mapping of names to the tensors of a record, in the order of publication.

    Arrays are views of the received message. bfloat16, which numpy lacks, is converted to float32 without loss.
    """

    def __init__(self, layouts: Sequence[TensorHeader], buffers: Sequence[memoryview]) -> None:
        self._parts = {layout.name: (layout, data) for layout, data in zip(layouts, buffers, strict=True)}
        self._arrays: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        array = self._arrays.get(name)
        if array is None:
            if name not in self._parts:
                raise KeyError(f"no tensor {name!r}; the record has {', '.join(self._parts) or 'none'}")
            array = self._arrays[name] = _array(*self._parts[name])
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        return (
            f"<{', '.join(f'{name} {layout.dtype}{list(layout.shape)}' for name, (layout, _) in self._parts.items())}>"
        )

    def layout(self, name: str) -> TensorHeader:
        """The header entry of a tensor: its dtype, shape and origin."""
        return self._parts[name][0]


class FeaturesRecord(RecordFields, frozen=True, kw_only=True, eq=False):
    """The features of one frame.

    Attributes:
        tensors: the tensors by name; `record["layer3/patch"]` is short for `record.tensors["layer3/patch"]`.
        gaps: what is missing between the camera's previous record and this one.
    """

    tensors: Tensors
    gaps: tuple[Gap, ...] = ()

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]

    @property
    def world_from_camera(self) -> Array:
        """The camera's pose, float32 [3, 4] = [R | t]: x_world = R x_camera + t, so t is the camera's position.

        Axes are OpenCV's: x right, y down, z forward. NaN if the model gave no rotation.

        Raises:
            KeyError: the record has no pose.
        """
        return self["pose/world_from_camera"]

    @property
    def intrinsics(self) -> Array:
        """The camera matrix, float32 [3, 3], for pixels of the model's image. NaN if the field of view is unusable.

        Raises:
            KeyError: the record has no pose.
        """
        return self["pose/intrinsics"]

    @property
    def source_intrinsics(self) -> Array:
        """The camera matrix, float32 [3, 3], for pixels of the captured frame.

        Raises:
            KeyError: the record has no pose.
        """
        return self["pose/source_intrinsics"]

    @property
    def depth(self) -> Array:
        """Distances along the optical axis, float16 [rows, columns], in the unit that `geometry` names.

        Pixels with too little confidence are NaN, see `min_confidence` in the config.

        Raises:
            KeyError: the record has no depth.
        """
        return self["depth"]

    @property
    def depth_confidence(self) -> Array:
        """The confidence of each depth, float16 [rows, columns], above 1.

        Raises:
            KeyError: the record has no depth.
        """
        return self["depth_confidence"]

    def points(
        self,
        frame: Literal["world", "camera"] = "world",
        *,
        min_confidence: float | None = 0.0,
        image: Array | None = None,
    ) -> tuple[FloatArray, npt.NDArray[np.uint8] | None]:
        """Compute the points of all pixels that have a depth: x = depth K^-1 (u, v, 1), then the pose.

        Padding of the model's image has no points. There are none either if the camera matrix is NaN or, in the world's
        frame of reference, the pose.

        Args:
            frame: `world` for the trajectory's frame of reference, `camera` for the camera's, which needs no pose.
            min_confidence: pixels with less confidence, or none, are left out; None keeps all.
            image: the captured frame, uint8 [height, width, 3], whose colours the points get; None for no colours.

        Returns:
            the points, float32 [N, 3], and their colours, uint8 [N, 3] in the channel order of `image`, or None.

        Raises:
            KeyError: the record has no depth, no camera matrix or no pose.
            ValueError: `frame` is neither, or the image does not have the size of the captured frame.
        """
        if frame not in ("world", "camera"):
            raise ValueError(f"expected frame 'world' or 'camera', got {frame!r}")
        width, height = self.source_size
        if image is not None and image.shape != (height, width, 3):
            raise ValueError(f"expected the captured frame, {(height, width, 3)}, got an image of shape {image.shape}")
        found = points_of(depth_view(self, frame, min_confidence))
        colours = None if image is None else np.ascontiguousarray(image[found.y, found.x], dtype=np.uint8)
        return found.points, colours

    def header(self) -> FeaturesHeader:
        """The header as received."""
        layouts = tuple(self.tensors.layout(name) for name in self.tensors)
        return FeaturesHeader(**_fields(self, RecordFields), tensors=layouts)

    def save_npz(self, path: str | os.PathLike[str]) -> None:
        """Write the tensors and the JSON header (as `header.json`) to a file for `numpy.load(path)`.

        The file appears under its final name only once it is complete.

        Raises:
            OSError: the file cannot be written.
        """
        target = Path(path)
        partial = target.with_name(f".{target.name}.part")
        partial.unlink(missing_ok=True)
        try:
            # "x" follows no link, which another user may have made in a shared folder.
            with partial.open("xb") as file, zipfile.ZipFile(file, "w") as archive:
                _write(archive, "header.json", np.array(msgspec.json.encode(self.header()).decode()))
                for name, array in self.tensors.items():
                    _write(archive, name, array)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


class StatusRecord(StatusHeader, frozen=True, kw_only=True):
    """A camera's state at one moment, from a `status` message."""

    gaps: tuple[Gap, ...] = ()


class EndRecord(EndHeader, frozen=True, kw_only=True):
    """The end of a camera; `gaps` shows whether the camera's last records were lost."""

    gaps: tuple[Gap, ...] = ()


class HelloRecord(HelloHeader, frozen=True, kw_only=True):
    """The service's description of itself."""

    gaps: tuple[Gap, ...] = ()


Record = FeaturesRecord | StatusRecord | EndRecord | HelloRecord


def make_record(message: Message, gaps: tuple[Gap, ...] = ()) -> Record:
    """Convert a decoded message to a record."""
    match message.header:
        case FeaturesHeader() as header:
            tensors = Tensors(header.tensors, message.tensors)
            return FeaturesRecord(**_fields(header, RecordFields), tensors=tensors, gaps=gaps)
        case StatusHeader() as status:
            return StatusRecord(**_fields(status, StatusHeader), gaps=gaps)
        case EndHeader() as end:
            return EndRecord(**_fields(end, EndHeader), gaps=gaps)
        case HelloHeader() as hello:
            return HelloRecord(**_fields(hello, HelloHeader), gaps=gaps)


def depth_view(
    record: FeaturesRecord, frame: Literal["world", "camera"] = "world", min_confidence: float | None = 0.0
) -> DepthView:
    """A record's depth map and what places it, for `points.points_of`; the arguments are those of `points`.

    Raises:
        KeyError: the record has no depth, no confidence, no camera matrix or no pose.
    """
    width, height = record.source_size
    left, top, *size = record.crop or (0, 0, width, height)
    known = None if record.geometry is None else record.geometry.known_intrinsics
    to_source = np.array(record.to_source)
    return DepthView(
        depth=record.depth,
        camera=record.intrinsics if known is None else _model_camera(known, to_source),
        to_source=to_source,
        shown=(left, top, min(size[0], width - left), min(size[1], height - top)),
        stride=1 if record.geometry is None else record.geometry.map_stride,
        confidence=None if min_confidence is None else record.depth_confidence,
        min_confidence=min_confidence or 0.0,
        pose=record.world_from_camera if frame == "world" else None,
    )


def _model_camera(known: tuple[float, float, float, float], to_source: Array) -> Array:
    # The camera matrix for pixels of the model's image, from that for pixels of the captured frame.
    fx, fy, cx, cy = known
    source = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
    camera: Array = np.linalg.inv(np.vstack([to_source, [0, 0, 1]])) @ source
    return camera


def _fields(value: msgspec.Struct, kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in kind.__struct_fields__}


def _array(layout: TensorHeader, data: memoryview) -> Array:
    bits = np.dtype("<u2" if layout.dtype == "bf16" else layout.dtype)
    array: Array = np.frombuffer(data, bits) if data.nbytes else np.empty(0, bits)
    if layout.dtype == "bf16":  # the upper half of a float32
        array = (array.astype(np.uint32) << 16).view(np.float32)
    elif not array.flags.aligned:  # a small part in the middle of a larger network buffer
        array = array.copy()
    array = array.reshape(layout.shape)
    array.flags.writeable = False
    return array


def _write(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    # Not numpy.savez: it takes names as keyword arguments, so a tensor named `file` would break it.
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)
