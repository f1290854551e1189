"""The example subscribers: each one decodes every number format and reports the same gaps as the client library."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ..client.fake_service import fake_service
from ..client.posed import posed_message

EXAMPLES = Path(__file__).parents[2] / "examples"
HEADERS = Path("/usr/include")


@pytest.fixture(scope="module")
def cpp_subscriber(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    missing = [tool for tool in ("cmake", "g++", "pkg-config") if shutil.which(tool) is None]
    missing += [name for name in ("zmq.h", "zmq_addon.hpp", "msgpack.hpp") if not (HEADERS / name).exists()]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install cmake g++ pkg-config cppzmq-dev libmsgpack-cxx-dev")
    build = tmp_path_factory.mktemp("cpp")
    # Without optimization: the compiler takes 3 s instead of 6.
    run("cmake", "-S", str(EXAMPLES / "cpp"), "-B", str(build), "-DCMAKE_BUILD_TYPE=Debug")
    run("cmake", "--build", str(build))
    return [str(build / "subscribe")]


@pytest.fixture(scope="module")
def javascript_subscriber(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    missing = [tool for tool in ("node", "npm") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install nodejs npm")
    folder = tmp_path_factory.mktemp("javascript") / "example"
    shutil.copytree(EXAMPLES / "javascript", folder, ignore=shutil.ignore_patterns("node_modules"))
    install = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(install, capture_output=True, text=True, timeout=150)
    if re.search("ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH", done.stderr):
        pytest.skip("the npm registry is unreachable")
    assert done.returncode == 0, done.stderr
    return ["node", str(folder / "subscribe.js")]


def test_the_blocking_python_subscriber() -> None:
    check([sys.executable, str(EXAMPLES / "python" / "subscribe.py")], subscriptions=2)


def test_the_asyncio_subscriber() -> None:
    check([sys.executable, str(EXAMPLES / "python" / "subscribe_async.py")], subscriptions=2)


def test_the_cpp_subscriber(cpp_subscriber: list[str]) -> None:
    check(cpp_subscriber, subscriptions=1)


@pytest.mark.timeout(180)  # npm install downloads two packages
def test_the_javascript_subscriber(javascript_subscriber: list[str]) -> None:
    check(javascript_subscriber, subscriptions=1)


def check(command: list[str], *, subscriptions: int) -> None:
    """Run a subscriber against a fake service, record by record, and compare what it prints."""
    with fake_service() as service, started([*command, service.endpoint]) as lines:
        service.wait_for_subscriptions(subscriptions)

        service.features("door", 7, source_seq=9, value=-1.5)
        assert [next(lines) for _ in range(3)] == record("door", 7, half=-1.5, bfloat=-0.125)

        service.features("door", 8, source_seq=13, value=6e-8)  # subnormal
        assert next(lines) == "door: source_drop 3"
        assert [next(lines) for _ in range(3)] == record("door", 8, half=5.96046e-08, bfloat=9.18355e-41)

        service.features("door", 2, source_seq=6, stream_epoch=1, value=65504)
        assert [next(lines) for _ in range(3)] == ["door: reconnect 1", "door: source_drop 4", "door: wire_loss 2"]
        assert [next(lines) for _ in range(3)] == record("door", 2, half=65504, bfloat=2.64807e36)

        service.instance = "restarted"
        service.features("door", 0, value=0)
        assert next(lines) == "door: restart 1"
        assert [next(lines) for _ in range(3)] == record("door", 0, half=0, bfloat=0)

        # Turned, so that a position taken from the transposed matrix would differ.
        pose = np.array([[0.0, 0, 1, 0.5], [0, 1, 0, -0.25], [-1, 0, 0, 3]])
        service.send(*map(bytes, posed_message("restarted", "door", 1, pose=pose)))
        confidence, position = [next(lines) for _ in range(7)][5:]
        assert (confidence, position) == ("  depth_confidence [20, 30] first 1", "  camera at 0.5 -0.25 3 (stream)")
        service.send(*map(bytes, posed_message("restarted", "door", 2, without=("pose/world_from_camera",))))
        assert [next(lines) for _ in range(5)][4] == confidence
        service.features("door", 3, value=0)
        assert [next(lines) for _ in range(3)] == record("door", 3, half=0, bfloat=0)


def record(camera: str, seq: int, *, half: float, bfloat: float) -> list[str]:
    """The expected lines. Both tensors have the same bits."""
    return [
        f"{camera} {seq} 640x480 -",
        f"  layer3/patch [2, 3] first {half:.4g}",
        f"  file [6] first {bfloat:.4g}",
    ]


@contextmanager
def started(command: list[str]) -> Iterator[Iterator[str]]:
    """The lines that a program prints, with all numbers in one notation."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        try:
            yield (normalized(line.rstrip("\n")) for line in program.stdout)
        finally:
            program.kill()


def normalized(line: str) -> str:
    return re.sub(r"(?<=first )\S+", lambda match: f"{float(match[0]):.4g}", line)


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=150)
