"""docs/messages.md: its Python reader runs, and it documents every header key."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from retinad.client.wire import (
    AlignmentHeader,
    ContextHeader,
    EndHeader,
    FeaturesHeader,
    GeometryHeader,
    HelloHeader,
    LatencyHeader,
    ModelHeader,
    StatusHeader,
    TensorHeader,
)

from .fake_service import FakeService

PARTS = (
    FeaturesHeader,
    ContextHeader,
    TensorHeader,
    ModelHeader,
    LatencyHeader,
    GeometryHeader,
    AlignmentHeader,
)
DOC = Path(__file__).parents[2] / "docs" / "messages.md"


READER = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)[0]
MSGPACK = """
import sys, types
import msgspec
sys.modules["msgpack"] = types.SimpleNamespace(unpackb=msgspec.msgpack.decode)
"""
"""A stand-in for the package `msgpack`, which no other test needs."""


@pytest.mark.parametrize(
    "code",
    [
        READER,
        MSGPACK
        + READER.replace("import msgspec,", "import msgpack,").replace("msgspec.msgpack.decode", "msgpack.unpackb"),
    ],
    ids=["msgspec", "msgpack"],
)
def test_the_reader_without_retinad_reads_any_layer_and_number_format(service: FakeService, code: str) -> None:
    assert "retinad" not in code
    code = code.replace("tcp://127.0.0.1:5555", service.endpoint)
    with subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE, text=True) as reader:
        try:
            assert service.wait_for_subscriptions(1) == [b"features/"]
            service.features("cam1", 5, layer=23)
            assert reader.stdout is not None
            assert [reader.stdout.readline() for _ in range(2)] == [
                "cam1 5 layer23/patch (2, 3)\n",
                "cam1 5 file (6,)\n",
            ]
        finally:
            reader.kill()


@pytest.mark.parametrize("header", PARTS)
def test_every_key_of_a_record_is_explained(header: type[msgspec.Struct]) -> None:
    text = DOC.read_text()
    assert [field for field in header.__struct_fields__ if f"`{field}`" not in text] == []


@pytest.mark.parametrize("header", [StatusHeader, EndHeader, HelloHeader])
def test_the_keys_of_other_kinds_are_mentioned(header: type[msgspec.Struct]) -> None:
    text = DOC.read_text()
    assert [field for field in header.__struct_fields__ if field not in text] == []
