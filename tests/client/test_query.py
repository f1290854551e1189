"""The messages of queries: what is encoded is decoded again, and any other bytes are refused with a reason."""

import random

import msgspec
import numpy as np
import pytest

from retinad.client import QueryError, WireError
from retinad.client.query import (
    MAX_PICTURE_BYTES,
    decode_answer,
    decode_query,
    encode_answer,
    encode_query,
    encode_refusal,
)
from retinad.client.wire import Buffer, encode_features

from .messages import header, tensor


def as_bytes(parts: list[Buffer]) -> list[bytes]:
    return [bytes(part) for part in parts]


def test_a_request_is_decoded_as_it_was_encoded() -> None:
    query = decode_query(as_bytes(encode_query("door", b"\xff\xd8picture", 2.5)))
    assert (query.header.camera, query.header.timeout_s, query.picture) == ("door", 2.5, b"\xff\xd8picture")


@pytest.mark.parametrize(
    ("camera", "picture", "timeout_s", "said"),
    [
        ("no/slash", b"x", 1, "1-64 characters"),
        ("door", b"", 1, "got 0 bytes"),
        ("door", bytes(MAX_PICTURE_BYTES + 1), 1, "16777217 bytes"),
        ("door", b"x", 0, "timeout_s must be above 0"),
        ("door", b"x", float("nan"), "timeout_s must be above 0"),
    ],
)
def test_a_request_that_the_service_would_refuse_is_not_encoded(
    camera: str, picture: bytes, timeout_s: float, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        encode_query(camera, picture, timeout_s)


def test_an_answer_is_a_record() -> None:
    data = np.arange(6, dtype=np.float16).reshape(2, 3)
    record = decode_answer(encode_answer(encode_features(header(tensor()), [data.data])))
    assert record.camera == "cam1"
    np.testing.assert_array_equal(record["layer0/patch"], data)


def test_a_refusal_is_an_error_with_its_reason() -> None:
    with pytest.raises(QueryError, match="remembers nothing yet"):
        decode_answer(encode_refusal("camera 'a' remembers nothing yet"))
    with pytest.raises(QueryError) as caught:
        decode_answer(encode_refusal("x" * 10_000))
    assert len(str(caught.value)) == 4096


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"x"],
        [b"x", b"y", b"z"],
        [b"\xc1", b"picture"],
        [msgspec.msgpack.encode({"camera": "a/b"}), b"x"],
        [msgspec.msgpack.encode({"camera": "a", "timeout_s": -1}), b"x"],
        [msgspec.msgpack.encode({"camera": "a", "schema": 1000}), b"x"],
        [b"\x81" * 5000, b"x"],
        [b"\x91" * 4000, b"x"],
    ],
)
def test_other_requests_are_refused(parts: list[bytes]) -> None:
    with pytest.raises(WireError):
        decode_query(parts)


@pytest.mark.parametrize("parts", [[], [b"hello/", b""], [b"ok"], [b"ok", b"x", b"y"], [b"error"], [b"error", b"\xc1"]])
def test_other_answers_are_refused(parts: list[bytes]) -> None:
    with pytest.raises(WireError):
        decode_answer(parts)


def test_any_bytes_are_a_message_or_a_wire_error() -> None:
    generator = random.Random(0)
    whole = as_bytes(encode_query("door", b"picture", 1.0))
    for _ in range(3000):
        parts = [bytearray(part) for part in whole]
        for _ in range(generator.randint(1, 4)):
            part = generator.choice(parts)
            part[generator.randrange(len(part))] = generator.randrange(256)
        try:
            decode_query([bytes(part) for part in parts])
        except WireError:
            continue
