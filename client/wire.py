"""The message layout: headers and tensors to the parts of a ZeroMQ message and back, surviving any bytes.

Part 0 is the topic, part 1 the header (a msgpack map), and each further part one tensor, in the header's order.
Whatever is wrong with received parts is a `WireError`. Nothing here is ever unpickled or evaluated.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from .headers import (
    CAMERA_PATTERN,
    SCHEMA,
    TENSOR_NAME_LENGTH,
    TENSOR_PATTERN,
    CameraHeader,
    ContextHeader,
    EndHeader,
    FeaturesHeader,
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
    "Buffer",
    "CameraHeader",
    "ContextHeader",
    "EndHeader",
    "FeaturesHeader",
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
"""Bytes of one number, by dtype name: every dtype that a message may hold. All are little-endian."""

MAX_HEADER_BYTES: Final = 1 << 20
MAX_TENSORS: Final = 1024
MAX_AXES: Final = 8

_CAMERA: Final = re.compile(CAMERA_PATTERN)
_TENSOR_NAME: Final = re.compile(TENSOR_PATTERN)


class WireError(ValueError):
    """Parts that are no message of this layout, or values that cannot be made one. The text says what and where."""


class Kind(StrEnum):
    """The kinds of messages, named as their topics are."""

    FEATURES = "features"
    STATUS = "status"
    END = "end"
    HELLO = "hello"


@dataclass(frozen=True, slots=True)
class Message:
    """A decoded message.

    Attributes:
        kind: its kind.
        camera: the camera's name, empty for `hello`.
        header: the header, of the kind's type.
        tensors: the bytes of each tensor, in the header's order, views of the parts; empty but for `features`.
    """

    kind: Kind
    camera: str
    header: Header
    tensors: tuple[memoryview, ...] = ()


class _Version(msgspec.Struct):
    """The one key that every layout has."""

    schema: int


_VERSION: Final = msgspec.msgpack.Decoder(_Version)
_FEATURES: Final = msgspec.msgpack.Decoder(FeaturesHeader)
_STATUS: Final = msgspec.msgpack.Decoder(StatusHeader)
_END: Final = msgspec.msgpack.Decoder(EndHeader)
_HELLO: Final = msgspec.msgpack.Decoder(HelloHeader)
_ENCODER: Final = msgspec.msgpack.Encoder()


def is_camera_name(name: str) -> bool:
    """Whether `name` is 1-64 characters of A-Z a-z 0-9 _ -."""
    return _CAMERA.fullmatch(name) is not None


def topic(kind: Kind, camera: str = "") -> bytes:
    """Part 0 of a message: `features/<camera>/`, or `hello/`, which has no camera.

    The closing slash keeps a subscriber of `cam1` from getting `cam10`, since ZeroMQ compares prefixes.

    Raises:
        WireError: the camera's name is not allowed, or is missing.
    """
    if kind is Kind.HELLO:
        return b"hello/"
    if not is_camera_name(camera):
        raise WireError(f"a camera's name is 1-64 characters of A-Z a-z 0-9 _ -, got {camera!r}")
    return f"{kind}/{camera}/".encode()


def topic_prefix(kind: Kind, camera: str | None = None) -> bytes:
    """What to subscribe to for one camera's messages of a kind, or all cameras'."""
    return f"{kind}/".encode() if camera is None else topic(kind, camera)


def split_topic(raw: Buffer) -> tuple[Kind, str]:
    """The kind and the camera (empty for `hello`) of a topic.

    Raises:
        WireError: it is no topic of this layout.
    """
    words = bytes(raw[:80]).decode("ascii", "replace").split("/")
    match words:
        case ["hello", ""]:
            return Kind.HELLO, ""
        case [("features" | "status" | "end") as kind, camera, ""] if is_camera_name(camera):
            return Kind(kind), camera
    raise WireError(f"no topic of a retinad message: {bytes(raw[:80])!r}")


def encode(header: StatusHeader | EndHeader | HelloHeader) -> list[Buffer]:
    """The two parts of a message without tensors.

    Raises:
        WireError: the camera's name is not allowed.
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
    """The parts of a `features` message; the tensors go in as they are, without a copy.

    Args:
        header: describes the tensors, in their order.
        tensors: C-contiguous little-endian buffers that nothing writes again.

    Raises:
        WireError: header and tensors disagree, or a dtype or name is not allowed.
    """
    if len(tensors) != len(header.tensors):
        raise WireError(f"the header describes {len(header.tensors)} tensors, got {len(tensors)}")
    _check_tensors(header.tensors)
    for layout, data in zip(header.tensors, tensors, strict=True):
        if data.nbytes != layout.nbytes or not data.c_contiguous:
            raise WireError(
                f"tensor {layout.name} needs {layout.nbytes} C-contiguous bytes, got {data.nbytes} "
                f"({'contiguous' if data.c_contiguous else 'with gaps'})"
            )
    return [topic(Kind.FEATURES, header.camera), _ENCODER.encode(header), *tensors]


def decode(parts: Sequence[Buffer]) -> Message:
    """A message from the parts received.

    Args:
        parts: the parts, as bytes or views; the views of tensors in the result refer to them.

    Raises:
        WireError: the parts are no message of this layout, or of a newer one.
    """
    if len(parts) < 2:
        raise WireError(f"a message has a topic, a header and tensors; got {len(parts)} parts")
    kind, camera = split_topic(parts[0])
    header = _decode_header(kind, parts[1])
    if not isinstance(header, HelloHeader) and header.camera != camera:
        raise WireError(f"the topic names camera {camera!r}, the header {header.camera!r}")
    layouts = header.tensors if isinstance(header, FeaturesHeader) else ()
    return Message(kind, camera, header, _tensors(layouts, parts[2:]))


def _decode_header(kind: Kind, raw: Buffer) -> Header:
    if len(raw) > MAX_HEADER_BYTES:
        raise WireError(f"a header has at most {MAX_HEADER_BYTES} bytes, got {len(raw)}")
    try:
        _check_schema(_VERSION.decode(raw).schema)
        match kind:
            case Kind.FEATURES:
                return _FEATURES.decode(raw)
            case Kind.STATUS:
                return _STATUS.decode(raw)
            case Kind.END:
                return _END.decode(raw)
            case Kind.HELLO:
                return _HELLO.decode(raw)
    except (msgspec.DecodeError, RecursionError) as exc:  # the latter from maps nested thousands deep
        raise WireError(f"the header of a {kind} message cannot be read: {exc}") from exc


def _check_schema(schema: int) -> None:
    if schema > SCHEMA:
        raise WireError(f"the message has schema {schema}, this client reads up to {SCHEMA}: update retinad here")
    if schema < 1:
        raise WireError(f"schema is at least 1, got {schema}")


def _tensors(layouts: tuple[TensorHeader, ...], parts: Sequence[Buffer]) -> tuple[memoryview, ...]:
    if len(parts) != len(layouts):
        raise WireError(f"the header describes {len(layouts)} tensors, the message has {len(parts)}")
    _check_tensors(layouts)
    views = tuple(memoryview(part) for part in parts)
    for layout, view in zip(layouts, views, strict=True):
        if view.nbytes != layout.nbytes:
            raise WireError(
                f"tensor {layout.name} has {layout.nbytes} bytes by the header, {view.nbytes} in the message"
            )
    return views


def _check_tensors(layouts: tuple[TensorHeader, ...]) -> None:
    if len(layouts) > MAX_TENSORS:
        raise WireError(f"a message has at most {MAX_TENSORS} tensors, got {len(layouts)}")
    for layout in layouts:
        _check_tensor(layout)
    if len({layout.name for layout in layouts}) != len(layouts):
        raise WireError("two tensors of the message have one name")


def _check_tensor(layout: TensorHeader) -> None:
    item_bytes = ITEM_BYTES.get(layout.dtype)
    if item_bytes is None:
        raise WireError(
            f"tensor {layout.name[:128]!r} has dtype {layout.dtype[:16]!r}, not one of {', '.join(ITEM_BYTES)}"
        )
    if not _TENSOR_NAME.fullmatch(layout.name) or len(layout.name) > TENSOR_NAME_LENGTH:
        raise WireError(f"no name of a tensor: {layout.name[:TENSOR_NAME_LENGTH]!r}")
    # Counting a zero axis as one bounds every partial product: numpy refuses shapes whose strides overflow 63 bits.
    bound = math.prod(max(length, 1) for length in layout.shape) * item_bytes if len(layout.shape) <= MAX_AXES else 0
    if not 0 < bound < 1 << 48:
        raise WireError(f"tensor {layout.name} has an impossible shape: {layout.shape[: MAX_AXES + 1]}")
    if math.prod(layout.shape) * item_bytes != layout.nbytes:
        raise WireError(
            f"tensor {layout.name} of shape {layout.shape} and dtype {layout.dtype} is not {layout.nbytes} bytes"
        )
