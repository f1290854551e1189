"""The JSON Schema accepts what `subscribe --json` prints, refuses anything else, and is written for readers."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from retinad.client.headers import (
    CameraHeader,
    EndHeader,
    FeaturesHeader,
    HelloHeader,
    ModelHeader,
    StatusHeader,
    TensorHeader,
)
from retinad.client.record import make_record
from retinad.client.wire import decode, encode, encode_features
from retinad.daemon.cli.messages import json_line
from retinad.daemon.cli.schema import message_schema

DOCUMENT: dict[str, Any] = json.loads(message_schema())
MODEL = ModelHeader(name="tiny", weights="random:0", mixers=("attention",))
FEATURES = FeaturesHeader(
    camera="cam1",
    instance="a1",
    stream_epoch=0,
    seq=1,
    source_seq=1,
    capture_unix_ns=1,
    capture_monotonic_ns=1,
    publish_unix_ns=1,
    epoch=0,
    epoch_frame=0,
    keyframe=True,
    source_size=(640, 480),
    model_size=(224, 168),
    grid=(12, 16),
    to_source=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)),
    model=MODEL,
    tensors=(TensorHeader(name="layer3/patch", dtype="<f2", shape=(2, 3), nbytes=12, layer=3, group="patch"),),
)
OTHERS = (
    StatusHeader(camera="cam1", state="running", fps=5.0, source_size=(640, 480)),
    EndHeader(camera="cam1", reason="finished"),
    HelloHeader(version="1", models=(MODEL,), cameras=(CameraHeader(name="cam1"),)),
)
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


def lines() -> dict[str, dict[str, Any]]:
    parts = [encode_features(FEATURES, [memoryview(bytes(12))]), *(encode(header) for header in OTHERS)]
    printed = [json.loads(json_line(make_record(decode(message)))) for message in parts]
    return {line["kind"]: line for line in printed}


def faults(value: object, schema: Mapping[str, Any]) -> Iterator[str]:
    """What a validator finds; it knows the words of JSON Schema that occur here."""
    for word, rule in schema.items():
        match word:
            case "$ref":
                yield from faults(value, DOCUMENT["$defs"][rule.removeprefix("#/$defs/")])
            case "type":
                if not isinstance(value, TYPES[rule]) or (isinstance(value, bool) and rule != "boolean"):
                    yield f"{value!r} is no {rule}"
            case "enum" | "const":
                if value not in (rule if word == "enum" else [rule]):
                    yield f"{value!r} is not {rule!r}"
            case "required" if isinstance(value, dict):
                yield from (f"{key} is missing" for key in rule if key not in value)
            case "properties" if isinstance(value, dict):
                yield from (fault for key, of in rule.items() if key in value for fault in faults(value[key], of))
            case "items" if isinstance(value, list) and isinstance(rule, dict):
                yield from (fault for item in value for fault in faults(item, rule))
            case "prefixItems" if isinstance(value, list):
                yield from (fault for item, of in zip(value, rule, strict=False) for fault in faults(item, of))
            case "anyOf":
                if all(any(True for _ in faults(value, of)) for of in rule):
                    yield f"{value!r} fits none"
            case "allOf":
                yield from (fault for of in rule for fault in faults(value, of))
            case "if":
                if not any(True for _ in faults(value, rule)):
                    yield from faults(value, schema["then"])
            case "pattern" if isinstance(value, str):
                if not re.search(rule, value):
                    yield f"{value!r} does not match"
            case "minimum" if isinstance(value, int | float):
                if value < rule:
                    yield f"{value} is too small"


@pytest.mark.parametrize("kind", ["features", "status", "end", "hello"])
def test_every_printed_message_fits(kind: str) -> None:
    assert list(faults(lines()[kind], DOCUMENT)) == []


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("features", {"kind": "feature"}),
        ("features", {"seq": -1}),
        ("features", {"camera": "a b"}),
        ("features", {"tensors": [{"name": "x"}]}),
        ("status", {"state": 3}),
        ("status", {"kind": "features"}),
        ("end", {"reason": None}),
        ("hello", {"models": [{"name": "x"}]}),
        ("end", {"gaps": [{"kind": "nap", "camera": "a", "count": 1}]}),
    ],
)
def test_any_other_message_does_not(kind: str, change: dict[str, object]) -> None:
    assert list(faults(lines()[kind] | change, DOCUMENT))


@pytest.mark.parametrize("value", [{}, {"seq": 1}, [], "features", None])
def test_what_is_no_message_does_not_fit(value: object) -> None:
    assert list(faults(value, DOCUMENT))


def test_each_kind_of_header_has_a_schema() -> None:
    assert set(DOCUMENT["headers"]) == {"features", "status", "end", "hello"}
    for header in DOCUMENT["headers"].values():
        definition = DOCUMENT["$defs"][header["$ref"].removeprefix("#/$defs/")]
        assert {"schema", "instance"} <= definition["properties"].keys()


def test_everything_is_described_in_words_for_readers() -> None:
    for name, definition in DOCUMENT["$defs"].items():
        texts = {name: definition["description"]}
        texts |= {
            f"{name}.{key}": value.get("description", "") for key, value in definition.get("properties", {}).items()
        }
        assert [place for place, text in texts.items() if not text] == []
        for text in texts.values():
            assert not re.search(r"Attributes:|\n|None|\wHeader|RecordFields", text), text
