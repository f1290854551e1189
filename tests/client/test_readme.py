"""The README's subscriber reads whatever a service publishes, whichever model makes its features."""

import re
import subprocess
import sys
from pathlib import Path

from .fake_service import FakeService

README = Path(__file__).parents[2] / "README.md"


def test_the_subscriber_reads_any_layer_and_number_format(service: FakeService) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    code = code.replace("tcp://127.0.0.1:5555", service.endpoint)
    with subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE, text=True) as reader:
        try:
            service.wait_for_subscriptions(2)
            service.features("demo", 5, layer=23)
            service.features("demo", 7, layer=23)
            assert reader.stdout is not None
            assert [reader.stdout.readline() for _ in range(3)] == [
                "demo 5 () {'layer23/patch': (2, 3), 'file': (6,)}\n",
                "demo 7 () {'layer23/patch': (2, 3), 'file': (6,)}\n",
                "missing: wire_loss 1 (demo)\n",
            ]
        finally:
            reader.kill()
