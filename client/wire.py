"""The message layout: encodes headers and tensors to ZeroMQ message parts and decodes untrusted parts safely.

Part 0 is the topic, part 1 is the header (a msgpack map), and each further part is one tensor, in the header's order.
Any invalid input raises `WireError`. Nothing is ever unpickled or evaluated.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from .compat import StrEnum
from .headers import (
    CAMERA_PATTERN,
    SCHEMA,
    TENSOR_NAME_LENGTH,
    TENSOR_PATTERN,
    AlignmentHeader,
    CameraHeader,
    ContextHeader,
    EndHeader,
    FeaturesHeader,
    GeometryHeader,
    HelloHeader,
    LatencyHeader,
    ModelHeader,
    RecordFields,
    ServiceHeader,
    StatusHeader,
    TensorHeader,
)

__all__ = [
    "ITEM_BYTES",
    "SCHEMA",
    "AlignmentHeader",
    "Buffer",
    "CameraHeader",
    "ContextHeader",
    "EndHeader",
    "FeaturesHeader",
    "GeometryHeader",
    "Header",
    "HelloHeader",
    "Kind",
    "LatencyHeader",
    "Message",
    "ModelHeader",
    "RecordFields",
    "ServiceHeader",
    "StatusHeader",
    "TensorHeader",
    "WireError",
    "check_schema",
    "decode",
    "encode",
    "encode_features",
    "is_camera_name",
    "split_topic",
    "topic",
    "topic_prefix",
]

Buffer = bytes | memoryview
Header = FeaturesHeader | StatusHeader | EndHeader | HelloHeader

ITEM_BYTES: Final = {"bf16": 2, "<f2": 2, "<f4": 4, "<f8": 8, "|u1": 1, "|i1": 1} | {
    f"<{sign}{size}": size for sign in "ui" for size in (2, 4, 8)
}
"""The item size, in bytes, of every dtype that a message may contain. All dtypes are little-endian."""

MAX_HEADER_BYTES: Final = 1 << 20
MAX_TENSORS: Final = 1024
MAX_AXES: Final = 8

_CAMERA: Final = re.compile(CAMERA_PATTERN)
_TENSOR_NAME: Final = re.compile(TENSOR_PATTERN)


class WireError(ValueError):
    """Bytes are not a valid message, or values cannot be encoded as one. The text says what is wrong, and where."""


class Kind(StrEnum):
    """The message kinds, named like their topics."""

    FEATURES = "features"
    STATUS = "status"
    END = "end"
    HELLO = "hello"


@dataclass(frozen=True, slots=True)
class Message:
    """A decoded message.

    Attributes:
        kind: the message's kind.
        camera: the camera's name, empty for `hello`.
        header: the header, whose type depends on the kind.
        tensors: views of the tensors' bytes, in the header's order; empty except for `features`.
    """

    kind: Kind
    camera: str
    header: Header
    tensors: tuple[memoryview, ...] = ()


class _Version(msgspec.Struct):
    """The header's `schema` alone: the only key that every version of the layout has."""

    schema: int


_VERSION: Final = msgspec.msgpack.Decoder(_Version)
_FEATURES: Final = msgspec.msgpack.Decoder(FeaturesHeader)
_STATUS: Final = msgspec.msgpack.Decoder(StatusHeader)
_END: Final = msgspec.msgpack.Decoder(EndHeader)
_HELLO: Final = msgspec.msgpack.Decoder(HelloHeader)
_ENCODER: Final = msgspec.msgpack.Encoder()


def is_camera_name(name: str) -> bool:
    """Whether `name` consists of 1 to 64 of the characters A-Z, a-z, 0-9, `_` and `-`."""
    return _CAMERA.fullmatch(name) is not None


def topic(kind: Kind, camera: str = "") -> bytes:
    """Part 0 of a message: `features/<camera>/`, or `hello/`, which has no camera.

    ZeroMQ matches prefixes: the trailing slash keeps a subscription to `cam1` from matching `cam10`.

    Raises:
        WireError: the camera name is invalid or missing.
    """
    if kind is Kind.HELLO:
        return b"hello/"
    if not is_camera_name(camera):
        raise WireError(f"a camera name has 1-64 characters of A-Z a-z 0-9 _ -, got {camera!r}")
    return f"{kind}/{camera}/".encode()


def topic_prefix(kind: Kind, camera: str | None = None) -> bytes:
    """The subscription prefix for messages of a kind, from one camera or from all."""
    return f"{kind}/".encode() if camera is None else topic(kind, camera)


def split_topic(raw: Buffer) -> tuple[Kind, str]:
    """Split a topic into the kind and the camera's name, which is empty for `hello`.

    Raises:
        WireError: the bytes are not a retinad topic.
    """
    words = bytes(raw[:80]).decode("ascii", "replace").split("/")
    match words:
        case ["hello", ""]:
            return Kind.HELLO, ""
        case [("features" | "status" | "end") as kind, camera, ""] if is_camera_name(camera):
            return Kind(kind), camera
    raise WireError(f"not a retinad topic: {bytes(raw[:80])!r}")


def encode(header: StatusHeader | EndHeader | HelloHeader) -> list[Buffer]:
    """Encode a message without tensors as two parts: the topic and the header.

    Raises:
        WireError: the camera name is invalid.
    """
    match header:
        case StatusHeader():
            first = topic(Kind.STATUS, header.camera)
        case EndHeader():
            first = topic(Kind.END, header.camera)
        case HelloHeader():
            first = topic(Kind.HELLO)
    return [first, _ENCODER.encode(header)]


def encode_features(header: FeaturesHeader, tensors: Sequence[memoryview]) -> list[Buffer]:
    """Encode a `features` message as parts; the tensors are passed through without a copy.

    Args:
        header: describes the tensors, in the same order.
        tensors: C-contiguous little-endian buffers that are never written again.

    Raises:
        WireError: header and tensors disagree, or a dtype or name is invalid.
    """
    if len(tensors) != len(header.tensors):
        raise WireError(f"the header describes {len(header.tensors)} tensors, but {len(tensors)} were passed")
    _check_tensors(header.tensors)
    for layout, data in zip(header.tensors, tensors, strict=True):
        if data.nbytes != layout.nbytes or not data.c_contiguous:
            raise WireError(
                f"tensor {layout.name} needs {layout.nbytes} C-contiguous bytes, got {data.nbytes} "
                f"({'contiguous' if data.c_contiguous else 'with gaps'})"
            )
    return [topic(Kind.FEATURES, header.camera), _ENCODER.encode(header), *tensors]


def decode(parts: Sequence[Buffer]) -> Message:
    """Decode received parts as a message.

    Args:
        parts: bytes or views; the tensors of the result are views of these parts.

    Raises:
        WireError: the parts are not a valid message, or the message has a newer layout.
    """
    if len(parts) < 2:
        raise WireError(f"a message has at least 2 parts, a topic and a header; got {len(parts)} parts")
    kind, camera = split_topic(parts[0])
    header = _decode_header(kind, parts[1])
    if not isinstance(header, HelloHeader) and header.camera != camera:
        raise WireError(f"the topic names camera {camera!r}, but the header names {header.camera!r}")
    layouts = header.tensors if isinstance(header, FeaturesHeader) else ()
    return Message(kind, camera, header, _tensors(layouts, parts[2:]))


def _decode_header(kind: Kind, raw: Buffer) -> Header:
    if len(raw) > MAX_HEADER_BYTES:
        raise WireError(f"a header may have at most {MAX_HEADER_BYTES} bytes, got {len(raw)}")
    try:
        check_schema(_VERSION.decode(raw).schema)
        match kind:
            case Kind.FEATURES:
                return _FEATURES.decode(raw)
            case Kind.STATUS:
                return _STATUS.decode(raw)
            case Kind.END:
                return _END.decode(raw)
            case Kind.HELLO:
                return _HELLO.decode(raw)
    except (msgspec.DecodeError, RecursionError) as exc:  # RecursionError: maps nested thousands deep
        raise WireError(f"the header of a {kind} message cannot be read: {exc}") from exc


def check_schema(schema: int) -> None:
    """Check that this client can read a header of this schema.

    Raises:
        WireError: it is newer, or no schema at all.
    """
    if schema > SCHEMA:
        raise WireError(f"the message has schema {schema}, but this client reads up to schema {SCHEMA}: update retinad")
    if schema < 1:
        raise WireError(f"schema must be at least 1, got {schema}")


def _tensors(layouts: tuple[TensorHeader, ...], parts: Sequence[Buffer]) -> tuple[memoryview, ...]:
    if len(parts) != len(layouts):
        raise WireError(f"the header describes {len(layouts)} tensors, but the message has {len(parts)}")
    _check_tensors(layouts)
    views = tuple(memoryview(part) for part in parts)
    for layout, view in zip(layouts, views, strict=True):
        if view.nbytes != layout.nbytes:
            raise WireError(
                f"tensor {layout.name} should have {layout.nbytes} bytes according to the header, got {view.nbytes}"
            )
    return views


def _check_tensors(layouts: tuple[TensorHeader, ...]) -> None:
    if len(layouts) > MAX_TENSORS:
        raise WireError(f"a message may have at most {MAX_TENSORS} tensors, got {len(layouts)}")
    for layout in layouts:
        _check_tensor(layout)
    if len({layout.name for layout in layouts}) != len(layouts):
        raise WireError("two tensors of the message have the same name")


def _check_tensor(layout: TensorHeader) -> None:
    item_bytes = ITEM_BYTES.get(layout.dtype)
    if item_bytes is None:
        raise WireError(
            f"tensor {layout.name[:128]!r} has dtype {layout.dtype[:16]!r}, expected one of {', '.join(ITEM_BYTES)}"
        )
    if not _TENSOR_NAME.fullmatch(layout.name) or len(layout.name) > TENSOR_NAME_LENGTH:
        raise WireError(f"invalid tensor name: {layout.name[:TENSOR_NAME_LENGTH]!r}")
    # An axis of length 0 counts as 1, so that every partial product is bounded: numpy rejects shapes whose strides
    # overflow 63 bits.
    bound = math.prod(max(length, 1) for length in layout.shape) * item_bytes if len(layout.shape) <= MAX_AXES else 0
    if not 0 < bound < 1 << 48:
        raise WireError(
            f"tensor {layout.name} has an impossible shape (at most {MAX_AXES} axes and 2^48 bytes are possible): "
            f"{layout.shape[: MAX_AXES + 1]}"
        )
    if math.prod(layout.shape) * item_bytes != layout.nbytes:
        raise WireError(
            f"tensor {layout.name} of shape {layout.shape} and dtype {layout.dtype} is not {layout.nbytes} bytes long"
        )
