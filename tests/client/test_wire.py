"""The message layout: round trips are exact, and any other input raises `WireError` and nothing else."""

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinad.client.record import FeaturesRecord, make_record
from retinad.client.wire import (
    ITEM_BYTES,
    SCHEMA,
    EndHeader,
    FeaturesHeader,
    HelloHeader,
    Kind,
    ModelHeader,
    StatusHeader,
    TensorHeader,
    WireError,
    decode,
    encode,
    encode_features,
    split_topic,
    topic,
    topic_prefix,
)

from .messages import edited, edited_tensor, header, tensor

unhurried = settings(deadline=None)  # no deadline: the machine may be busy


def received(parts: list[bytes | memoryview]) -> list[bytes]:
    return [bytes(part) for part in parts]


@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES))
def test_tensors_of_every_dtype_come_back_bit_by_bit(dtype: str) -> None:
    data = random.Random(0).randbytes(6 * ITEM_BYTES[dtype])
    message = decode(received(encode_features(header(tensor(dtype)), [memoryview(data)])))
    assert (message.kind, message.camera) == (Kind.FEATURES, "cam1")
    assert [bytes(view) for view in message.tensors] == [data]
    record = make_record(message)
    assert isinstance(record, FeaturesRecord)
    array = record["layer0/patch"]
    assert array.shape == (2, 3)
    assert not array.flags.writeable
    if dtype == "bf16":
        assert array.dtype == np.float32
        assert (array.view(np.uint32) & 0xFFFF == 0).all()
        assert (array.view(np.uint32) >> 16).astype("<u2").tobytes() == data
    else:
        assert array.dtype.newbyteorder("<") == np.dtype(dtype)
        assert array.tobytes() == data


def test_encoding_copies_no_tensor() -> None:
    data = np.arange(6, dtype=np.float16)
    view = memoryview(data.tobytes())
    assert encode_features(header(tensor()), [view])[2] is view


@pytest.mark.parametrize("shape", [(0,), (0, 7, 2), (1,), (3, 0), ()])
def test_empty_and_scalar_shapes_survive(shape: tuple[int, ...]) -> None:
    layout = tensor("<f4", shape)
    record = make_record(decode([topic(Kind.FEATURES, "a"), encode_header(layout), bytes(layout.nbytes)]))
    assert isinstance(record, FeaturesRecord)
    assert record["layer0/patch"].shape == shape


def encode_header(layout: TensorHeader) -> bytes:
    return msgspec.msgpack.encode(header(layout, camera="a"))


@pytest.mark.parametrize(
    "value",
    [
        StatusHeader(camera="cam1", state="backoff", reason="refused", attempt=3, next_try_s=1.5, source_size=(4, 3)),
        EndHeader(camera="cam1", reason="finished", next_seq=24, captured_total=24, expected_total=24),
        HelloHeader(version="1.0", versions={"zmq": "4"}, models=(ModelHeader(name="t", weights="random:0"),)),
    ],
)
def test_headers_without_tensors_come_back_equal(value: StatusHeader | EndHeader | HelloHeader) -> None:
    parts = encode(value)
    assert decode(received(parts)).header == value
    assert bytes(parts[0])[-1:] == b"/"


def test_unknown_keys_and_words_are_ignored() -> None:
    """Additions do not change the schema's number: an old client must accept a newer service."""
    raw = edited(new_key={"a": [1, 2]}, flags=["reset", "a_new_flag"])
    message = decode([b"features/cam1/", raw, bytes(12)])
    assert isinstance(message.header, FeaturesHeader)
    assert message.header.flags == ("reset", "a_new_flag")


@pytest.mark.parametrize("schema", [SCHEMA + 1, 2**63, 0, -1])
def test_another_schema_is_refused_by_number(schema: int) -> None:
    with pytest.raises(WireError, match="schema"):
        decode([b"features/cam1/", edited(schema=schema), bytes(12)])


def test_a_newer_layout_is_refused_as_newer_even_if_its_keys_differ() -> None:
    with pytest.raises(WireError, match="update retinad"):
        decode([b"features/cam1/", msgspec.msgpack.encode({"schema": SCHEMA + 1, "camera": 7})])


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "0 parts"),
        ([b"features/cam1/"], "1 parts"),
        ([b"features/cam1/", edited()], "describes 1 tensors, but the message has 0"),
        ([b"features/cam1/", edited(), bytes(12), b""], "the message has 2"),
        ([b"features/cam1/", edited(), bytes(11)], "12 bytes according to the header, got 11"),
        ([b"features/cam2/", edited(), bytes(12)], "the topic names camera 'cam2'"),
        ([b"features/cam1", edited(), bytes(12)], "not a retinad topic"),
        ([b"status/cam1/", msgspec.msgpack.encode(StatusHeader(camera="cam1", state="running")), b"x"], "has 1"),
        ([b"features/cam1/", edited_tensor(dtype=">f2"), bytes(12)], ">f2"),
        ([b"features/cam1/", edited_tensor(dtype="|O"), bytes(12)], "O"),
        ([b"features/cam1/", edited_tensor(nbytes=13), bytes(13)], "not 13 bytes"),
        ([b"features/cam1/", edited_tensor(shape=[2**32, 2**32, 2**32], nbytes=0), b""], "impossible shape"),
        ([b"features/cam1/", edited_tensor(shape=[0, 2**62, 2**62], nbytes=0), b""], "impossible shape"),
        ([b"features/cam1/", edited_tensor(shape=[1] * 9, nbytes=2), bytes(2)], "impossible shape"),
        ([b"features/cam1/", edited_tensor(shape=[-2, -3]), bytes(12)], "shape"),
        ([b"features/cam1/", edited_tensor(name="../../etc/passwd"), bytes(12)], "name"),
        ([b"features/cam1/", edited_tensor(name="a\n"), bytes(12)], "name"),
        (
            [b"features/cam1/", edited(tensors=[msgspec.to_builtins(tensor())] * 2), bytes(12), bytes(12)],
            "the same name",
        ),
        ([b"features/cam1/", edited(tensors=[msgspec.to_builtins(tensor())] * 1025), *[bytes(12)] * 1025], "at most"),
        ([b"features/cam1/", bytes(2 << 20)], "at most"),
        ([b"features/cam1/", b"\x82\xa6schema\x01\xa1x" + b"\x91" * 200_000], "cannot be read"),
        ([b"features/cam1/", b"\x82\xa6schema\x01\xa1x\xdd\xff\xff\xff\xff"], "cannot be read"),
    ],
)
def test_a_wire_error_says_what_is_wrong(parts: list[bytes], why: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(parts)
    assert why in str(caught.value)


@unhurried
@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_parts_are_a_message_or_a_wire_error(parts: list[bytes]) -> None:
    survive(parts)


@unhurried
@given(st.sampled_from([b"features/cam1/", b"status/cam1/", b"end/cam1/", b"hello/"]), st.binary(max_size=300))
def test_any_header_is_a_message_or_a_wire_error(first: bytes, raw: bytes) -> None:
    survive([first, raw, bytes(12)])


@unhurried
@given(st.integers(0, len(edited()) - 1), st.binary(max_size=3), st.integers(0, 3))
def test_any_damage_to_a_good_header_is_survived(at: int, patch: bytes, cut: int) -> None:
    raw = edited()
    survive([b"features/cam1/", raw[:at] + patch + raw[at + cut :], bytes(12)])


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@unhurried
@given(st.sampled_from(sorted(msgspec.to_builtins(header(tensor())))), plain)
def test_any_value_in_any_field_is_survived(field: str, value: object) -> None:
    survive([b"features/cam1/", edited(**{field: value}), bytes(12)])


@unhurried
@given(
    st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 4), max_size=10),
    st.sampled_from([*sorted(ITEM_BYTES), ">f4", "|O", "V8", ""]),
    st.integers(0, 64),
)
def test_any_shape_is_survived_and_only_a_valid_one_is_accepted(shape: list[int], dtype: str, nbytes: int) -> None:
    survive([b"features/cam1/", edited_tensor(shape=shape, dtype=dtype, nbytes=nbytes), bytes(nbytes)])


def survive(parts: list[bytes]) -> None:
    """Decode the parts; if that succeeds, every array must be readable and have the shape in its header."""
    try:
        message = decode(parts)
    except WireError:
        return
    record = make_record(message)
    if isinstance(record, FeaturesRecord):
        for name, array in record.tensors.items():
            assert array.shape == record.tensors.layout(name).shape
            array.sum()


@unhurried
@given(st.binary(max_size=100))
def test_any_topic_is_a_topic_or_a_wire_error(raw: bytes) -> None:
    try:
        kind, camera = split_topic(raw)
    except WireError:
        return
    assert topic(kind, camera) == raw


@pytest.mark.parametrize("camera", ["", "a/b", "ä", "a b", "a\n", "x" * 65, ".."])
def test_camera_names_that_break_topics_are_refused(camera: str) -> None:
    with pytest.raises(WireError, match="1-64 characters"):
        topic(Kind.FEATURES, camera)
    with pytest.raises(WireError):
        encode(StatusHeader(camera=camera, state="running"))


def test_topics_end_in_a_slash_so_that_no_name_is_a_prefix_of_another() -> None:
    assert topic(Kind.FEATURES, "cam1") == b"features/cam1/"
    assert topic(Kind.HELLO) == b"hello/"
    assert topic_prefix(Kind.STATUS) == b"status/"
    assert not topic(Kind.FEATURES, "cam10").startswith(topic_prefix(Kind.FEATURES, "cam1"))


def test_encoding_refuses_tensors_that_do_not_match_the_header() -> None:
    data = np.zeros((4, 6), np.float16)
    with pytest.raises(WireError, match="describes 1 tensors, but 0 were passed"):
        encode_features(header(tensor()), [])
    with pytest.raises(WireError, match="needs 12 C-contiguous bytes, got 48"):
        encode_features(header(tensor()), [memoryview(data.tobytes())])
    with pytest.raises(WireError, match="with gaps"):
        encode_features(header(tensor(shape=(4, 3))), [memoryview(bytes(48))[::2]])
    with pytest.raises(WireError, match=">f2"):
        encode_features(header(tensor(">f2")), [memoryview(bytes(6))])
