"""Images over HTTP: parts of any type, snapshots polled as one connection, logins, and the time of each image."""

import socket
import time
from collections.abc import Callable
from dataclasses import replace

import cv2
import pytest

from retinad.pipeline.capture.camera import CameraState
from retinad.pipeline.errors import SourceFault

from ...deadlines import scaled
from .reading import failure, numbers
from .rig import live, lossless, make_rig, play, running
from .servers import FakeServer, Handler, draw_number, multipart, snapshot

pytestmark = pytest.mark.anyio

Serve = Callable[[Handler], FakeServer]
S = CameraState


@pytest.mark.parametrize(
    "handler",
    [
        multipart("Content-Type: image/jpeg\r\nContent-Length: %d"),
        multipart("Content-Type: image/jpg\r\nContent-Length: %d"),
        multipart("content-type:IMAGE/PJPEG; x=1\r\ncontent-length:%d"),
        multipart("Content-Length: %d"),
        multipart("Content-Type: image/jpeg"),
        multipart("X-Time: 1"),
        multipart(""),
        multipart("Content-Type: image/jpeg\r\nContent-Length: 0"),
        multipart("Content-Type: image/jpeg", ends="\n"),
        multipart("Content-Type: image/jpeg\r\nContent-Length: %d", boundary="--f"),
        multipart("Content-Type: image/jpeg\r\nContent-Length: %d", boundary='"something else"'),
        multipart("Content-Type: image/png\r\nContent-Length: %d"),
    ],
)
async def test_parts_of_every_type_are_read(serve: Serve, handler: Handler) -> None:
    rig = make_rig(live(f"http://127.0.0.1:{serve(handler).port}/x", queue_frames=50))
    async with running(rig, keep=True):
        await rig.reached(lambda rig: len(rig.frames) >= 5)
    assert rig.order() == [(0, n) for n in range(len(rig.frames))]
    assert rig.statuses[-1].state is S.RUNNING


async def test_parts_that_are_no_images_are_skipped(serve: Serve) -> None:
    handler = multipart(
        "Content-Type: image/jpeg\r\nContent-Length: %d", "Content-Type: text/plain\r\nContent-Length: %d"
    )
    rig = make_rig(live(f"http://127.0.0.1:{serve(handler).port}/x"))
    async with running(rig):
        await rig.reached(lambda rig: len(rig.frames) >= 5)
    assert rig.queue.counters.failed == 0


@pytest.mark.parametrize("length", [True, False])
async def test_the_time_of_a_part_is_that_of_its_header(serve: Serve, length: bool) -> None:
    """A part without a length ends when the next one begins, one interval later."""
    sent: list[int] = []

    def handler(server: FakeServer, peer: socket.socket) -> None:
        server.receive(peer)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=f\r\n\r\n")
        for number in range(100):
            data = cv2.imencode(".jpg", draw_number(number))[1].tobytes()
            size = b"Content-Length: %d\r\n" % len(data) if length else b""
            sent.append(time.monotonic_ns())
            peer.sendall(b"--f\r\nContent-Type: image/jpeg\r\n" + size + b"\r\n" + data + b"\r\n")
            time.sleep(0.25)

    rig = make_rig(live(f"http://127.0.0.1:{serve(handler).port}/x"))
    async with running(rig):
        await rig.reached(lambda rig: len(rig.frames) >= 6)
    late_ms = [(frame.stamp.capture_monotonic_ns - sent[frame.stamp.source_seq]) / 1e6 for frame in rig.frames]
    assert all(value >= 0 for value in late_ms)
    assert sorted(late_ms)[2] < 60, late_ms
    for frame in rig.frames:
        offset = frame.stamp.capture_unix_ns - frame.stamp.capture_monotonic_ns
        assert abs(offset - (time.time_ns() - time.monotonic_ns())) < 50e6


async def test_a_snapshot_address_is_polled_as_one_connection(serve: Serve) -> None:
    server = serve(snapshot())
    rig = make_rig(live(f"http://127.0.0.1:{server.port}/snap.jpg", fps=10, queue_frames=10))
    async with running(rig):
        began = time.monotonic()
        await rig.reached(lambda rig: len(rig.frames) >= 12)
        took_s = time.monotonic() - began
    assert rig.order() == [(0, n) for n in range(len(rig.frames))]
    assert rig.states == [S.CONNECTING, S.RUNNING]
    assert server.connections == 1
    assert not rig.log
    assert 1.0 <= took_s <= scaled(3)


async def test_a_snapshot_address_without_a_cap_is_polled_once_a_second(serve: Serve) -> None:
    server = serve(snapshot())
    rig = make_rig(live(f"http://127.0.0.1:{server.port}/snap.jpg", stall_timeout_s=0.4))
    async with running(rig):
        await rig.reached(lambda rig: len(rig.frames) >= 3)
    times = [frame.stamp.capture_monotonic_ns / 1e9 for frame in rig.frames]
    assert times[1] - times[0] == pytest.approx(1, abs=0.3)
    assert rig.states == [S.CONNECTING, S.RUNNING]


@pytest.mark.parametrize(
    "handler",
    [
        snapshot(length=False),
        snapshot(keep=False),
        snapshot(login='Basic realm="c"'),
        snapshot(login='Digest realm="c", nonce="n", qop="auth"'),
        snapshot(login='Digest realm="c", nonce="n", algorithm=SHA-256'),
    ],
)
async def test_snapshots_of_every_server_are_one_epoch(serve: Serve, handler: Handler) -> None:
    """Without a length, with a connection that is not kept, or with a login."""
    rig = make_rig(live(f"http://u:s3cret@127.0.0.1:{serve(handler).port}/snap.jpg", fps=20))
    async with running(rig):
        await rig.reached(lambda rig: len(rig.frames) >= 4)
    assert rig.states == [S.CONNECTING, S.RUNNING]
    assert {frame.stamp.stream_epoch for frame in rig.frames} == {0}


async def test_a_snapshot_that_fails_is_a_failure_of_the_camera(serve: Serve) -> None:
    def handler(server: FakeServer, peer: socket.socket) -> None:
        for _ in range(2):
            server.receive(peer)
            if len(server.requests) > 1:
                peer.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
                continue
            data = cv2.imencode(".jpg", draw_number(1))[1].tobytes()
            peer.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(data) + data
            )

    error = await failure(live(f"http://127.0.0.1:{serve(handler).port}/x", fps=20))
    assert error.fault is SourceFault.REFUSED
    assert "503 Busy" in str(error)


async def test_a_snapshot_in_lossless_mode_is_a_file_of_one_image(serve: Serve) -> None:
    rig = await play(lossless(f"http://127.0.0.1:{serve(snapshot()).port}/snap.jpg"))
    assert rig.order() == [(0, 0)]
    assert (rig.statuses[-1].state, rig.statuses[-1].reason) == (S.ENDED, None)


async def test_a_redirection_keeps_the_password_at_home(serve: Serve) -> None:
    other = serve(snapshot())

    def handler(server: FakeServer, peer: socket.socket) -> None:
        while text := server.receive(peer):
            if "Authorization" in text:
                place = f"Location: http://localhost:{other.port}/y".encode()
                peer.sendall(b"HTTP/1.1 302 Found\r\n" + place + b"\r\nContent-Length: 0\r\n\r\n")
            else:
                peer.sendall(b'HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm="c"\r\nContent-Length: 0\r\n\r\n')

    config = lossless(f"http://u:s3cret@127.0.0.1:{serve(handler).port}/x")
    assert await numbers(config) == [0]
    assert [text.split()[1] for text in other.requests if text] == ["/y"]
    assert "Authorization" not in other.requests[0]


@pytest.mark.parametrize(
    ("userinfo", "login", "words"),
    [
        ("", 'Basic realm="c"', "the address has none: write http://USER:PASSWORD@HOST/PATH"),
        ("u:s3cret@", 'Basic realm="c"', "rejected the user name or password"),
        ("u:s3cret@", "Negotiate", "not supported: Negotiate; allow Digest with MD5 or Digest with SHA-256, or Basic"),
        ("", 'Digest realm="c", nonce="n", algorithm=SHA-256', "the address has none"),
    ],
)
async def test_a_refused_login_names_its_cause(serve: Serve, userinfo: str, login: str, words: str) -> None:
    def handler(server: FakeServer, peer: socket.socket) -> None:
        while server.receive(peer):
            peer.sendall(f"HTTP/1.1 401 No\r\nWWW-Authenticate: {login}\r\nContent-Length: 0\r\n\r\n".encode())

    error = await failure(live(f"http://{userinfo}127.0.0.1:{serve(handler).port}/x"))
    assert error.fault is SourceFault.AUTH
    assert words in str(error)
    assert "s3cret" not in str(error)


async def test_a_file_behind_a_login_that_ffmpeg_does_not_know_says_so(serve: Serve) -> None:
    def handler(server: FakeServer, peer: socket.socket) -> None:
        while text := server.receive(peer):
            login = 'WWW-Authenticate: Digest realm="c", nonce="n", algorithm=SHA-256\r\n'
            status = "200 OK\r\nContent-Type: video/mp4" if "Authorization: Digest" in text else f"401 No\r\n{login}"
            peer.sendall(f"HTTP/1.1 {status.strip()}\r\nContent-Length: 0\r\n\r\n".encode())

    error = await failure(live(f"http://u:s3cret@127.0.0.1:{serve(handler).port}/x"))
    assert error.fault is SourceFault.AUTH
    assert "FFmpeg does not know: Digest with SHA-256" in str(error)


async def test_a_damaged_image_is_left_out(serve: Serve) -> None:
    def handler(server: FakeServer, peer: socket.socket) -> None:
        server.receive(peer)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=f\r\n\r\n")
        for number in range(1000):
            data = cv2.imencode(".jpg", draw_number(number))[1].tobytes()[: 1000 if number % 2 else None]
            peer.sendall(b"--f\r\nContent-Length: %d\r\n\r\n" % len(data) + data + b"\r\n")
            time.sleep(0.02)

    rig = make_rig(replace(live(f"http://127.0.0.1:{serve(handler).port}/x"), queue_frames=20))
    async with running(rig, keep=True):
        await rig.reached(lambda rig: len(rig.frames) >= 4)
    assert all(frame.stamp.source_seq % 2 == 0 for frame in rig.frames)
    assert rig.queue.counters.failed >= 3
    assert "truncated" in rig.log[0]
