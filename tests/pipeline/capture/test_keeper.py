"""Dead cameras are cheap: a process outlives failed tries, and an address that nothing answers at needs none."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from retinad.pipeline.capture.camera import CameraState
from retinad.pipeline.capture.knock import knock
from retinad.pipeline.capture.starts import REPEAT_S, CaptureStarts
from retinad.pipeline.errors import SourceError, SourceFault

from ...deadlines import scaled
from .reading import capture_processes
from .rig import Rig, live, lossless, make_rig, running
from .servers import FakeServer, Handler, garbage, http_status, mjpeg, rtsp_status, shy, silent

pytestmark = pytest.mark.anyio

Serve = Callable[[Handler], FakeServer]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port whose host drops every attempt to connect, as a camera that lost power does."""
    with socket.socket() as server, closing(socket.socket()) as filler:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = int(server.getsockname()[1])
        filler.connect(("127.0.0.1", port))
        with closing(socket.socket()) as more:
            more.setblocking(False)
            more.connect_ex(("127.0.0.1", port))
            yield port


def failed(times: int) -> Callable[[Rig], bool]:
    return lambda rig: rig.camera.status.attempt >= times


@pytest.mark.parametrize("scheme", ["rtsp", "rtsps", "http", "https"])
async def test_a_refused_camera_needs_no_process(closed_port: int, scheme: str) -> None:
    rig = make_rig(live(f"{scheme}://u:s3cret@127.0.0.1:{closed_port}/x?token=s3cret2"))
    async with running(rig):
        await rig.reached(failed(3))
        assert capture_processes() == []
    assert rig.captures == []
    failures = [status for status in rig.statuses if status.state is CameraState.BACKOFF]
    assert {status.fault for status in failures} == {SourceFault.REFUSED}
    assert "nothing listens at this host and port" in (failures[0].reason or "")
    assert "s3cret" not in repr(rig.statuses)


async def test_a_host_that_does_not_answer_needs_no_process(deaf_port: int) -> None:
    rig = make_rig(live(f"rtsp://127.0.0.1:{deaf_port}/x", connect_timeout_s=0.2))
    async with running(rig):
        await rig.reached(failed(2))
    assert rig.captures == []
    failures = [status for status in rig.statuses if status.state is CameraState.BACKOFF]
    assert {status.fault for status in failures} == {SourceFault.TIMEOUT}
    assert "did not answer within 0.2 s" in (failures[0].reason or "")


@pytest.mark.parametrize(
    ("source", "handler"),
    [
        ("rtsp", shy),
        ("rtsp", garbage),
        ("rtsp", silent),
        ("rtsp", rtsp_status("453 Not Enough Bandwidth")),
        ("http", http_status("503 Busy")),
        ("http", mjpeg(100, 3)),
        ("/nothere.mp4", None),
        ("/dev/video-that-is-not-there", None),
    ],
)
async def test_a_process_is_kept_while_its_camera_fails(serve: Serve, source: str, handler: Handler | None) -> None:
    if handler is not None:
        source = f"{source}://127.0.0.1:{serve(handler).port}/x"
    rig = make_rig(live(source, connect_timeout_s=0.5, stall_timeout_s=0.5))
    async with running(rig):
        await rig.reached(failed(3))
        assert len(rig.captures) == 1
        assert capture_processes() == [str(rig.captures[0].pid)]
    assert capture_processes() == []
    assert rig.adds_up()


async def test_a_kept_process_explains_each_failure_by_itself(serve: Serve) -> None:
    """The reason of an earlier try is not that of a later one."""
    answers = iter([rtsp_status("404 Not Found"), rtsp_status("453 Not Enough Bandwidth")])
    answer: list[Handler] = []

    def handler(server: FakeServer, peer: socket.socket) -> None:
        (answer[-1] if answer else shy)(server, peer)

    rig = make_rig(live(f"rtsp://127.0.0.1:{serve(handler).port}/x"))
    async with running(rig):
        await rig.reached(failed(1))
        answer.append(rtsp_status("453 Not Enough Bandwidth"))
        await rig.reached(lambda rig: rig.camera.status.fault is SourceFault.REFUSED)
        assert "453" in (rig.camera.status.reason or "")
        answer.append(next(answers))
        await rig.reached(lambda rig: rig.camera.status.fault is SourceFault.NOT_FOUND)
    assert len(rig.captures) == 1


async def test_a_file_that_appears_is_played_by_the_kept_process(make_video: Callable[..., Path]) -> None:
    video = make_video(frames=5)
    away = video.with_name("away")
    video.rename(away)
    rig = make_rig(lossless(video, retry=True))
    async with running(rig):
        await rig.reached(failed(2))
        away.rename(video)
        await rig.reached(lambda rig: len(rig.frames) == 5)
    assert len(rig.captures) == 1


async def test_processes_start_one_at_a_time() -> None:
    """Twelve at once leave little of two cores to a camera that runs."""
    starts = CaptureStarts()
    loading: list[None] = []
    most = 0

    async def start() -> None:
        nonlocal most
        async with starts.turn():
            loading.append(None)
            most = max(most, len(loading))
            await anyio.sleep(0.01)
            loading.pop()

    async with anyio.create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(start)
    assert most == 1


async def test_a_start_that_hangs_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("retinad.pipeline.capture.keeper.TURN_S", 0.1)
    starts = CaptureStarts()
    hung, good = make_rig(live(tmp_path), starts=starts), make_rig(live("synthetic:?width=64&height=48"), starts=starts)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hung.camera.run)
        await hung.reached(lambda rig: bool(rig.captures))
        os.kill(hung.captures[0].pid, 19)  # stopped before it has loaded
        async with running(good):
            await good.reached(lambda rig: bool(rig.frames))
        assert hung.camera.status.attempt == 0
        tasks.cancel_scope.cancel()


async def test_cameras_that_lose_every_process_share_a_budget() -> None:
    now = [100.0]
    starts = CaptureStarts(clock=lambda: now[0])
    assert [starts.reserve_s() for _ in range(3)] == [REPEAT_S, 2 * REPEAT_S, 3 * REPEAT_S]
    now[0] += 1000
    assert starts.reserve_s() == REPEAT_S


async def test_a_camera_that_loses_a_process_now_and_then_does_not_wait_for_the_budget() -> None:
    starts = CaptureStarts()
    for _ in range(100):
        starts.reserve_s()
    rig = make_rig(live("synthetic:?fps=100&width=64&height=48"), starts=starts)
    began = time.monotonic()
    async with running(rig):
        await rig.reached(lambda rig: bool(rig.frames))
        os.kill(rig.captures[0].pid, 9)
        await rig.reached(lambda rig: any(epoch == 1 for epoch, _ in rig.order()))
    assert time.monotonic() - began < scaled(10)


@pytest.mark.parametrize("source", ["synthetic:", "/nothere", "rtsp://camera.invalid/x", "/dev/video9"])
async def test_only_numeric_addresses_are_knocked_at(source: str) -> None:
    with anyio.fail_after(scaled(0.5)):
        await knock(live(source))


async def test_a_web_address_behind_a_proxy_is_not_knocked_at(
    monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:3128")
    await knock(live(f"http://127.0.0.1:{closed_port}/x"))
    with pytest.raises(SourceError):
        await knock(live(f"rtsp://127.0.0.1:{closed_port}/x"))


async def test_a_knock_that_fails_for_lack_of_descriptors_blames_no_camera(
    monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("retinad.pipeline.capture.knock.socket.socket", refuse)
    await knock(live(f"rtsp://127.0.0.1:{closed_port}/x"))
