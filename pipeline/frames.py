"""The values that are passed through the pipeline: captured frames and the model's outputs. All are immutable."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
"""Pixels [height, width, 3], BGR (OpenCV's order)."""

Size = tuple[int, int]
"""Width and height in pixels, in this order."""

Affine = tuple[tuple[float, float, float], tuple[float, float, float]]
"""2x3 matrix [[a, b, c], [d, e, f]]: (x, y) -> (a x + b y + c, d x + e y + f)."""


DType = Literal["float16", "bfloat16", "float32"]
"""Number format of weights, memories and outputs."""

Numbers = npt.NDArray[np.number[Any]]
"""An array of any number format."""

NUMPY_DTYPES: Final[Mapping[DType, np.dtype[np.number[Any]]]] = {
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "float32": np.dtype("<f4"),
}
"""The numpy type of each number format; bfloat16 numbers are stored as their raw bits."""


class OutputKind(StrEnum):
    """The kinds of numbers that an output can hold."""

    FEATURES = "features"
    """Tokens of the network."""
    POSE = "pose"
    """The camera's pose and field of view."""
    DEPTH = "depth"
    """The distance of each pixel's surface from the camera, along the optical axis."""
    POINTS = "points"
    """The world coordinates of each pixel's surface."""


MAP_KINDS = frozenset((OutputKind.DEPTH, OutputKind.POINTS))
"""The kinds of outputs that have a number per pixel. They may be computed for some of the frames only."""


class TokenGroup(StrEnum):
    """Groups of a frame's tokens that can be published."""

    CAMERA = "camera"
    REGISTERS = "registers"
    SCALE = "scale"
    PATCH = "patch"
    POOLED = "pooled"


PATCH_GROUPS = frozenset((TokenGroup.PATCH, TokenGroup.POOLED))
"""The token groups that a network without blocks has."""


class Flag(StrEnum):
    """Conditions of a record that a receiver should know about."""

    RESET = "reset"
    """The stream's memory was reset before this frame."""
    NAN = "nan"
    """A number of this frame is not finite; the stream's memory is reset after this frame."""
    SIZE_CHANGED = "size_changed"
    """The source's frame size differs from that of the previous frame."""
    WARMUP = "warmup"
    """One of the stream's first `scale_frames` frames."""
    RANDOM_WEIGHTS = "random_weights"
    """The model's weights are random: its outputs are meaningless."""


@dataclass(frozen=True, slots=True)
class CropPlace:
    """The position of a cropped frame within the captured frame.

    Attributes:
        left, top: first column and first row of the cropped frame.
        captured_size: width and height of the captured frame in pixels.
    """

    left: int
    top: int
    captured_size: Size


@dataclass(frozen=True, slots=True)
class FrameStamp:
    """Where and when a frame was captured.

    Attributes:
        camera: the camera's configured name.
        stream_epoch: number of the source's connection, from 0, incremented at each reconnect.
        source_seq: number of the frame within the stream epoch, from 0; dropped frames are included in the count.
        capture_unix_ns: wall-clock time of capture in nanoseconds since 1970 (data only; never used for intervals).
        capture_monotonic_ns: `CLOCK_MONOTONIC` time of capture in nanoseconds.
        pts_ns: the container's presentation time in nanoseconds, or None where the source has none.
        source_size: width and height of the frame's pixels; smaller than as captured if the camera has a crop.
        crop: where these pixels are in the captured frame, or None if they are the whole frame.
    """

    camera: str
    stream_epoch: int
    source_seq: int
    capture_unix_ns: int
    capture_monotonic_ns: int
    pts_ns: int | None
    source_size: Size
    crop: CropPlace | None = None

    @property
    def captured_size(self) -> Size:
        """Width and height of the frame as captured, in pixels."""
        return self.source_size if self.crop is None else self.crop.captured_size


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One captured frame.

    Attributes:
        stamp: where and when the frame was captured.
        pixels: uint8 [height, width, 3], BGR (OpenCV's order), C-contiguous, read-only. May be a view of memory shared
            with the capture process, which reuses that memory once the last reference to the array is gone. So keep
            frames no longer than needed.
    """

    stamp: FrameStamp
    pixels: Pixels


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that the model publishes for each frame: its name, shape and number format, without the numbers.

    Attributes:
        name: unique within a record; words of A-Z a-z 0-9 _ - joined by slashes.
        shape: shape of the tensor for one frame, channels last.
        dtype: number format.
        kind: which kind of numbers the tensor holds.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    kind: OutputKind

    @property
    def nbytes(self) -> int:
        """Size of the tensor in one record, in bytes."""
        return math.prod(self.shape) * NUMPY_DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class TokenOutput(Output):
    """The tokens of one group, as one layer pair outputs them; `name` is `layer<N>/<group>`.

    The last axis has 2C channels: the output of the frame block, then that of the global block. Shapes: camera [1, 2C],
    registers [4, 2C], scale [1, 2C], patch [rows, cols, 2C], pooled [rows', cols', 2C]. A network of depth 0 has only
    patch and pooled tokens, with the C channels of the patch embedding.

    Attributes:
        layer: 0-based index of the layer pair.
        group: the group of tokens.
    """

    layer: int
    group: TokenGroup

    @classmethod
    def of(cls, layer: int, group: TokenGroup, shape: tuple[int, ...], dtype: DType) -> "TokenOutput":
        """Make an output that is named after its layer and group."""
        return cls(f"layer{layer}/{group}", shape, dtype, OutputKind.FEATURES, layer, group)


@dataclass(frozen=True, slots=True, eq=False)
class OutputTensor:
    """The numbers of one output for one frame.

    Attributes:
        output: describes the numbers.
        data: C-contiguous array of the output's shape, never written to again. numpy has no bfloat16, so bfloat16
            numbers are stored as their raw bits, in uint16.

    Raises:
        ValueError: the shape or number format of the array differs from the output's.
    """

    output: Output
    data: Numbers

    def __post_init__(self) -> None:
        output, data = self.output, self.data
        if (data.shape, data.dtype) != (output.shape, NUMPY_DTYPES[output.dtype]):
            raise ValueError(
                f"output {output.name} must be {output.dtype} {output.shape}, got {data.dtype} {data.shape}"
            )

    @property
    def name(self) -> str:
        """The output's name."""
        return self.output.name


@dataclass(frozen=True, slots=True)
class Context:
    """How much of its stream's memory a frame attended to.

    Attributes:
        frames: number of frames whose tokens were all attended to, including the frame itself. In a first block,
            frames attend to earlier and later ones.
        history_frames: number of older frames of which only the special tokens remained.
        forgotten_frames: number of keyframes of this memory of which no token remained.
    """

    frames: int
    history_frames: int = 0
    forgotten_frames: int = 0


@dataclass(frozen=True, slots=True)
class Alignment:
    """How an epoch's frame of reference maps to that of `Geometry.world_epoch`: x_world = scale R x_epoch + t.

    Attributes:
        scale: size of the epoch's unit, in units of `world_epoch`.
        rotation: R as a unit quaternion x y z w.
        translation: t, in units of `world_epoch`.
        residual: median distance between the camera centres of the frames that both epochs share, after the
            alignment to the previous epoch, as a fraction of their median depth. None if there was no alignment.
        rotation_residual_degrees: median angle between the shared frames' rotations, after the alignment.
        reason: why the alignment should not be trusted; None if it is good.
    """

    scale: float = 1.0
    rotation: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 1.0)
    translation: tuple[float, float, float] = (0.0, 0.0, 0.0)
    residual: float | None = None
    rotation_residual_degrees: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the numbers of poses, depths and points mean.

    Attributes:
        alignment: maps the epoch's frame of reference to that of `world_epoch`. The pose encoding stays in the epoch's
            own.
        unit: name of the unit of length: `metre` as the model estimates it, or `stream` for the unknown, but constant,
            unit of the stream.
        map_stride: a map's pixel (column, row) is the pixel (map_stride column, map_stride row) of the model's image.
        world_epoch: the stream's epoch in whose frame of reference and unit poses, depths and points are published. A
            new number means a new trajectory, which has nothing to do with the previous one.
    """

    alignment: Alignment = Alignment()
    unit: str = "stream"
    map_stride: int = 1
    world_epoch: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """The model's outputs for one frame.

    Attributes:
        stamp: the frame's stamp.
        epoch: number of the stream's memory, from 0, incremented at each reset.
        epoch_frame: number of the frame within the epoch, from 0. An epoch may begin with frames of the previous epoch;
            these are counted, so the first published frame of such an epoch has a number above 0.
        keyframe: whether the frame entered the memory (later frames attend to it).
        flags: see `Flag`.
        model_size: width and height of the model's image, in pixels.
        grid: rows and columns of patches.
        to_source: maps a model pixel (x, y) to a pixel of the captured frame (pixel centres at whole numbers).
        tensors: the outputs, in the order in which they are published.
        latency_us: microseconds by stage: `queue` (capture to the start of the step), `preprocess`, `model`.
        context: how much of the memory the frame attended to; None where no block attends across frames.
        geometry: what poses, depths and points mean; None if the record has none of them.
    """

    stamp: FrameStamp
    epoch: int
    epoch_frame: int
    keyframe: bool
    flags: frozenset[Flag]
    model_size: Size
    grid: tuple[int, int]
    to_source: Affine
    tensors: tuple[OutputTensor, ...]
    latency_us: Mapping[str, int] = field(default_factory=dict)
    context: Context | None = None
    geometry: Geometry | None = None


@dataclass(frozen=True, slots=True)
class FrameFailure:
    """A frame that the model could not process, and the reason."""

    stamp: FrameStamp
    reason: str


Outcome = Features | FrameFailure
"""What the model returns for a frame."""
