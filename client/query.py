"""The messages of read-only queries: a picture goes to the service, and its pose and depth come back.

A request has two parts, a header (a msgpack map) and the bytes of a picture's file. An answer begins with `ok`,
followed by the parts of a `features` message, or with `error`, followed by a header with the reason. Any invalid input
raises `WireError`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from .headers import SCHEMA, CameraName
from .record import FeaturesRecord, make_record
from .wire import Buffer, WireError, check_schema, decode, is_camera_name

MAX_PICTURE_BYTES: Final = 1 << 24
"""Maximum size of a picture, in bytes."""
MAX_TIMEOUT_S: Final = 3600.0
MAX_REQUEST_BYTES: Final = 1 << 12
_OK: Final = b"ok"
_ERROR: Final = b"error"


class QueryError(RuntimeError):
    """The service refused a query. The text is the service's reason."""


class QueryHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Header of a request.

    Attributes:
        schema: version of the message layout.
        camera: name of the camera whose memory is asked.
        timeout_s: seconds for which the client waits; a request that waits longer in the service is dropped.
    """

    schema: int = SCHEMA
    camera: CameraName
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] = 10.0


class RefusalHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Header of an answer that is an error.

    Attributes:
        reason: why there is no pose.
        schema: version of the message layout.
    """

    reason: Annotated[str, Meta(max_length=4096)]
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class Query:
    """A decoded request.

    Attributes:
        header: the header.
        picture: the bytes of the picture's file.
    """

    header: QueryHeader
    picture: bytes


_ENCODER: Final = msgspec.msgpack.Encoder()
_REQUEST: Final = msgspec.msgpack.Decoder(QueryHeader)
_REFUSAL: Final = msgspec.msgpack.Decoder(RefusalHeader)


def encode_query(camera: str, picture: bytes, timeout_s: float) -> list[Buffer]:
    """Encode a request.

    Raises:
        ValueError: the picture is empty or too large, or the camera's name is invalid.
    """
    if not is_camera_name(camera):
        raise ValueError(f"a camera name has 1-64 characters of A-Z a-z 0-9 _ -, got {camera!r}")
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise ValueError(f"timeout_s must be above 0 and at most {MAX_TIMEOUT_S:g}, got {timeout_s}")
    if not 0 < len(picture) <= MAX_PICTURE_BYTES:
        limit = f"1 to {MAX_PICTURE_BYTES} bytes"
        raise ValueError(f"expected the bytes of a picture's file, {limit}, got {len(picture)} bytes")
    return [_ENCODER.encode(QueryHeader(camera=camera, timeout_s=timeout_s)), picture]


def decode_query(parts: Sequence[bytes]) -> Query:
    """Decode the parts of a request.

    Raises:
        WireError: the parts are not a request.
    """
    if len(parts) != 2:
        raise WireError(f"a request has 2 parts, a header and a picture, got {len(parts)} parts")
    header, picture = parts
    if len(header) > MAX_REQUEST_BYTES:
        raise WireError(f"the header of a request has at most {MAX_REQUEST_BYTES} bytes, got {len(header)}")
    try:
        request = _REQUEST.decode(header)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise WireError(f"the header of the request cannot be read: {exc}") from exc
    check_schema(request.schema)
    return Query(request, picture)


def encode_answer(features: Sequence[Buffer]) -> list[Buffer]:
    """Encode an answer from the parts of a `features` message."""
    return [_OK, *features]


def encode_refusal(reason: str) -> list[Buffer]:
    """Encode an answer that is an error."""
    return [_ERROR, _ENCODER.encode(RefusalHeader(reason=reason[:4096]))]


def decode_answer(parts: Sequence[Buffer]) -> FeaturesRecord:
    """Decode an answer.

    Raises:
        QueryError: the service refused the query.
        WireError: the parts are not an answer.
    """
    first, rest = (bytes(parts[0][:16]), parts[1:]) if parts else (b"", ())
    if first == _ERROR and len(rest) == 1:
        try:
            raise QueryError(_REFUSAL.decode(rest[0]).reason)
        except msgspec.DecodeError as exc:
            raise WireError(f"the service's refusal cannot be read: {exc}") from exc
    if first != _OK:
        raise WireError(f"an answer begins with ok or error, got {first!r}: is this the service's locate_endpoint?")
    record = make_record(decode(rest), ())
    if not isinstance(record, FeaturesRecord):
        raise WireError(f"an answer is a record of features, got {type(record).__name__}")
    return record
