"""A capture process can be ended at any time, shows no secret, and leaves nothing behind."""

import errno
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path

import anyio
import msgspec
import pytest

from retinad.pipeline.capture.capture import GOODBYE_S, open_capture
from retinad.pipeline.capture.process import TERMINATE_S
from retinad.pipeline.capture.protocol import Start
from retinad.pipeline.config import CameraConfig, StreamConfig
from retinad.pipeline.errors import SourceError, SourceFault

from ...deadlines import scaled
from .reading import alive, capture_processes, count, failure
from .rig import live
from .servers import FakeServer, Handler, mjpeg, silent

pytestmark = pytest.mark.anyio

MakeVideo = Callable[..., Path]
Serve = Callable[[Handler], FakeServer]


@pytest.mark.parametrize("scheme", ["rtsp", "http"])
async def test_a_blocked_open_ends_within_half_a_second(serve: Serve, scheme: str) -> None:
    server = serve(silent)

    async def open_it() -> None:
        async with open_capture(live(f"{scheme}://127.0.0.1:{server.port}/x", connect_timeout_s=60)):
            pytest.fail("the source cannot be open")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_it)
        with anyio.fail_after(scaled(30)):
            while not server.requests:  # noqa: ASYNC110  # the server's thread has no event
                await anyio.sleep(0.01)
        start = time.monotonic()
        tasks.cancel_scope.cancel()
    assert time.monotonic() - start < scaled(0.5)


async def test_a_child_that_ignores_sigterm_is_killed() -> None:
    async with open_capture(live("synthetic:")) as capture:
        await capture.receive()
        pid = capture.pid
        os.kill(pid, signal.SIGSTOP)  # a stopped process does not act on SIGTERM
        start = time.monotonic()
    assert time.monotonic() - start < GOODBYE_S + TERMINATE_S + scaled(0.5)
    assert not alive(pid)


async def test_a_killed_child_is_a_crash() -> None:
    async with open_capture(live("synthetic:")) as capture:
        await capture.receive()
        os.kill(capture.pid, signal.SIGKILL)
        with pytest.raises(SourceError, match="SIGKILL") as caught:
            await count(capture)
    assert caught.value.fault is SourceFault.CRASHED


async def test_an_error_in_the_body_is_raised_unchanged() -> None:
    with pytest.raises(KeyError):
        async with open_capture(live("synthetic:")):
            raise KeyError


async def test_secrets_are_in_no_argument_and_no_environment(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    monkeypatch.setenv("RETINAD_CAMERA_PASSWORD", "s3cret")
    server = serve(mjpeg(30))
    async with open_capture(live(f"http://u:s3cret@127.0.0.1:{server.port}/x?token=s3cret2")) as capture:
        await capture.receive()
        process = Path(f"/proc/{capture.pid}")
        text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        assert os.getsid(capture.pid) == capture.pid, "Ctrl-C would reach it"
    assert b"s3cret" not in text
    assert b"NOTIFY_SOCKET" not in text
    assert b"cam" in text, "the camera's name is for ps"


async def test_the_child_ends_with_its_parent() -> None:
    code = """
import anyio, os
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.capture.capture import GOODBYE_S, open_capture
from retinad.pipeline.capture.process import TERMINATE_S
async def main():
    async with open_capture(CameraConfig("cam", "synthetic:")) as capture:
        print(capture.pid, flush=True)
        os.kill(os.getpid(), 9)
anyio.run(main)
"""
    result = await anyio.run_process([sys.executable, "-c", code], check=False, stderr=None)
    pid = int(result.stdout)
    with anyio.fail_after(scaled(2)):
        while alive(pid):  # noqa: ASYNC110  # the exit of an orphan has no event
            await anyio.sleep(0.01)


async def test_no_descriptor_left_is_a_source_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(24, "Too many open files")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pidfd_open", refuse)
    error = await failure(live("synthetic:"))
    assert (error.fault, "Too many open files" in str(error)) == (SourceFault.CRASHED, True)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
async def test_frame_memory_that_cannot_be_mapped_is_a_source_error(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Mapping needs a descriptor and address space: without them one camera fails, not the service."""

    def refuse(*arguments: object, **more: object) -> None:
        raise OSError(number, os.strerror(number))

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("retinad.pipeline.capture.slots.mmap.mmap", refuse)
    error = await failure(live("synthetic:"))
    assert (error.fault, os.strerror(number) in str(error)) == (SourceFault.CRASHED, True)
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_high_descriptors_work() -> None:
    held = [os.dup(0) for _ in range(1100)]
    try:
        async with open_capture(live("synthetic:")) as capture:
            assert await capture.receive() is not None
    finally:
        for descriptor in held:
            os.close(descriptor)


def test_the_child_imports_neither_torch_nor_an_event_loop() -> None:
    code = "import sys, retinad.pipeline.capture.child as c; print(*{m.partition('.')[0] for m in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"torch", "zmq", "anyio", "asyncio", "cv2"} & set(loaded)


def test_a_config_survives_the_transfer_to_the_child() -> None:
    config = CameraConfig("cam", "x", fps=1.5, size=(640, 480), fourcc="MJPG", stream=StreamConfig(scale_frames=3))
    for one in (config, replace(config, source="vid\udce9o ü.mp4")):  # a name that is not UTF-8, as Python keeps it
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(Start.of(one)), type=Start).camera == one
    assert {field.name for field in fields(CameraConfig)} == set(msgspec.to_builtins(config))


@pytest.mark.parametrize(("text", "times"), [("synthetic:?width=64&height=48", 8), ("/nothere", 5)])
async def test_nothing_is_left_for_the_garbage_collector(text: str, times: int) -> None:
    """In a process with torch a full collection is minutes away, and would keep each opening's frames until then."""

    @asynccontextmanager
    async def once() -> AsyncIterator[None]:
        try:
            async with open_capture(live(text)) as capture:
                await capture.receive()
                yield
        except SourceError:
            yield

    async with once():
        pass
    gc.collect()
    gc.disable()
    try:
        descriptors, memory = len(os.listdir("/proc/self/fd")), resident_mb()
        for _ in range(times):
            async with once():
                pass
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        assert resident_mb() - memory < 4
        assert gc.collect() < times, "each opening left a cycle"
    finally:
        gc.enable()
    assert capture_processes() == []


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
