"""The subscribers that the README shows read whatever a service publishes, whichever model makes its features."""

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import FakeService

README = Path(__file__).parents[2] / "README.md"
CODES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
MSGPACK = """
import sys, types
import msgspec
sys.modules["msgpack"] = types.SimpleNamespace(unpackb=msgspec.msgpack.decode)
"""
"""In place of a package that the tests do not need otherwise, and that reads maps and lists alike."""


@pytest.mark.parametrize(
    ("code", "subscriptions"), list(zip(CODES, (2, 1), strict=True)), ids=["client library", "pyzmq alone"]
)
def test_a_first_subscriber_reads_layers_of_any_number(service: "FakeService", code: str, subscriptions: int) -> None:
    code = MSGPACK + code.replace("tcp://127.0.0.1:5555", service.endpoint)
    with subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE, text=True) as reader:
        try:
            service.wait_for_subscriptions(subscriptions)
            service.features("demo", 5, layer=23)
            assert reader.stdout is not None
            line = reader.stdout.readline()
            assert line.startswith("demo 5 ")
            assert "'layer23/patch': (2, 3)" in line
        finally:
            reader.kill()
