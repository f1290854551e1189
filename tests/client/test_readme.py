"""The subscribers that the README shows read whatever a service publishes, whichever model makes its features."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .fake_service import FakeService

README = Path(__file__).parents[2] / "README.md"
CODES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
MSGPACK = """
import sys, types
import msgspec
sys.modules["msgpack"] = types.SimpleNamespace(unpackb=msgspec.msgpack.decode)
"""
"""In place of a package that the tests do not need otherwise, and that reads maps and lists alike."""


@pytest.mark.parametrize(
    ("code", "subscriptions", "expected"),
    [
        (CODES[0], 2, ["demo 5 () {'layer23/patch': (2, 3), 'file': (6,)}\n"]),
        (CODES[1], 1, ["demo 5 layer23/patch (2, 3)\n", "demo 5 file (6,)\n"]),
    ],
    ids=["client library", "pyzmq alone"],
)
def test_a_first_subscriber_reads_any_layer_and_number_format(
    service: FakeService, code: str, subscriptions: int, expected: list[str]
) -> None:
    code = MSGPACK + code.replace("tcp://127.0.0.1:5555", service.endpoint)
    with subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE, text=True) as reader:
        try:
            service.wait_for_subscriptions(subscriptions)
            service.features("demo", 5, layer=23)
            assert reader.stdout is not None
            lines = "".join(reader.stdout.readline() for _ in range(len(expected)))
            assert lines == "".join(expected)
        finally:
            reader.kill()
