"""A log that nobody reads stops neither the frames nor the end of the service."""

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retinad.client import FeaturesRecord

from ...deadlines import scaled
from ..service_rig import camera, receive_until, subscriber, write_config, write_frames

PIPE_BYTES = 4096


@contextmanager
def unread(config: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A service whose output goes to a full pipe, as to `less` that is left alone; and the pipe's other end."""
    read_fd, write_fd = os.pipe()
    fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.write(write_fd, b"\n" * PIPE_BYTES)
    command = [sys.executable, "-m", "retinad.daemon", "run", "--config", str(config)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CACHE_DIRECTORY": f"{config.parent}/cache"}
    process = subprocess.Popen(command, stdout=write_fd, stderr=write_fd, env=environment)
    os.close(write_fd)
    try:
        yield process, read_fd
    finally:
        process.kill()
        process.wait()
        os.close(read_fd)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_frames_and_the_stop_do_not_wait_for_the_log(tmp_path: Path, number: int) -> None:
    """A camera whose images are all damaged prints a line for each of them."""
    write_frames(tmp_path / "images", 1)
    for name in range(500):
        (tmp_path / "images" / f"bad{name}.png").write_bytes(b"no image at all")
    cameras = camera("good", "synthetic:?fps=50&width=160&height=120") + camera("bad", tmp_path / "images", loop=0)
    config = write_config(tmp_path, cameras, service='log_level = "debug"')
    with subscriber(tmp_path) as records, unread(config) as (process, _):
        receive_until(records, lambda record: isinstance(record, FeaturesRecord) and record.seq >= 100)
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(scaled(10)) == 0
        assert time.monotonic() - began < scaled(3)


def test_a_reader_that_comes_back_reads_what_was_dropped(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("good", "synthetic:?fps=50&width=160&height=120"))
    with subscriber(tmp_path) as records, unread(config) as (process, read_fd):
        receive_until(records, lambda record: isinstance(record, FeaturesRecord) and record.seq >= 20)
        process.send_signal(signal.SIGTERM)
        text = b""
        while select.select([read_fd], [], [], scaled(10))[0] and (block := os.read(read_fd, 65536)):
            text += block
        assert process.wait(scaled(10)) == 0
    events = [json.loads(line)["event"] for line in text.decode().split("\n") if line]
    assert events[-1] == "stopped"
    assert "started" in events


def test_a_second_signal_ends_the_service_at_once_whoever_reads(tmp_path: Path) -> None:
    config = write_config(tmp_path, camera("a", "synthetic:?fps=50&width=160&height=120"))
    with subscriber(tmp_path) as records, unread(config) as (process, _):
        receive_until(records, lambda record: isinstance(record, FeaturesRecord))
        os.kill(process.pid, signal.SIGSTOP)  # both signals are there before the first is handled
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait(scaled(3)) in (128 + signal.SIGTERM, 128 + signal.SIGINT)
