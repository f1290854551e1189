"""Each kind of failure has its own fault and message."""

import socket
import time
import wave
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from retinad.pipeline.capture.probe import probe
from retinad.pipeline.capture.starts import CaptureStarts
from retinad.pipeline.config import RtspTransport
from retinad.pipeline.errors import SourceError, SourceFault
from retinad.pipeline.sources.reader import SourceInfo

from ...deadlines import scaled
from .reading import failure
from .rig import live, lossless
from .servers import FakeServer, Handler, garbage, http_status, mjpeg, rtsp_status, shy, silent

pytestmark = pytest.mark.anyio

MakeVideo = Callable[..., Path]
Serve = Callable[[Handler], FakeServer]


@pytest.mark.parametrize(
    ("scheme", "handler", "fault"),
    [
        ("rtsp", rtsp_status("401 Unauthorized"), SourceFault.AUTH),
        ("rtsp", rtsp_status("401 Non autorisé"), SourceFault.AUTH),
        ("rtsp", rtsp_status("403 Forbidden"), SourceFault.AUTH),
        ("rtsp", rtsp_status("404 Not Found"), SourceFault.NOT_FOUND),
        ("rtsp", rtsp_status("453 Not Enough Bandwidth"), SourceFault.REFUSED),
        ("http", http_status("401 Unauthorized"), SourceFault.AUTH),
        ("http", http_status("401 未授权", login="Negotiate"), SourceFault.AUTH),
        ("http", http_status("401 \x85\ufffd", login=""), SourceFault.AUTH),
        ("http", http_status("404 Not Found"), SourceFault.NOT_FOUND),
        ("http", http_status("503 Busy"), SourceFault.REFUSED),
        ("rtsp", garbage, SourceFault.CLOSED),
        ("http", garbage, SourceFault.CLOSED),
        ("rtsp", shy, SourceFault.CLOSED),
        ("http", shy, SourceFault.CLOSED),
        ("https", garbage, SourceFault.TLS),
        ("rtsp", silent, SourceFault.TIMEOUT),
        ("http", silent, SourceFault.TIMEOUT),
        ("http", mjpeg(50, 3), SourceFault.CLOSED),
        ("http", mjpeg(50, 3, stall=True), SourceFault.STALLED),
    ],
)
async def test_network_failures_are_distinguished(
    serve: Serve, scheme: str, handler: Handler, fault: SourceFault
) -> None:
    server = serve(handler)
    url = f"{scheme}://admin:s3cret@127.0.0.1:{server.port}/x?password=s3cret2"
    error = await failure(live(url, connect_timeout_s=0.7, stall_timeout_s=0.7))
    assert error.fault is fault, str(error)
    assert "s3cret" not in str(error)


@pytest.mark.parametrize(
    ("userinfo", "login", "words"),
    [
        ("u:s3cret@", 'Digest realm="c", nonce="n", algorithm=SHA-256', "does not know: Digest with SHA-256; allow"),
        ("u:s3cret@", 'Digest realm="c", nonce="n", qop="auth"', "rejected the user name or password"),
        ("u:s3cret@", 'Basic realm="c"', "rejected the user name or password"),
        ("", 'Digest realm="c", nonce="n"', "the address has none: write rtsp://USER:PASSWORD@HOST/PATH"),
        ("", 'Digest realm="c", nonce="n", algorithm=SHA-256', "does not know: Digest with SHA-256; allow"),
        ("u:s3cret@", "Negotiate", "does not know: Negotiate; allow"),
    ],
)
async def test_a_refused_login_names_its_cause(serve: Serve, userinfo: str, login: str, words: str) -> None:
    server = serve(rtsp_status("401 Unauthorized", login))
    error = await failure(live(f"rtsp://{userinfo}127.0.0.1:{server.port}/x"))
    assert error.fault is SourceFault.AUTH
    assert words in str(error)
    assert "s3cret" not in str(error)


async def test_a_path_that_is_missing_after_a_login_is_no_login(serve: Serve) -> None:
    def handler(server: FakeServer, peer: socket.socket) -> None:
        while text := server.receive(peer):
            status = "404 Not Found" if "Authorization" in text else "401 Unauthorized"
            sequence = text.split("CSeq:")[1].split("\r\n")[0].strip()
            peer.sendall(f'RTSP/1.0 {status}\r\nCSeq: {sequence}\r\nWWW-Authenticate: Basic realm="c"\r\n\r\n'.encode())

    error = await failure(live(f"rtsp://u:p@127.0.0.1:{serve(handler).port}/x"))
    assert error.fault is SourceFault.NOT_FOUND


@pytest.mark.parametrize("address", ["RTSP://127.0.0.1:{}/x", "Http://127.0.0.1:{}/x", "hTTP://u:p@127.0.0.1:{}/x"])
async def test_a_scheme_in_capitals_reaches_the_host(serve: Serve, address: str) -> None:
    server = serve(shy)
    await failure(live(address.format(server.port), connect_timeout_s=2))
    assert server.requests


async def test_a_closed_port_is_refused(serve: Serve) -> None:
    server = serve(silent)
    server.stop()
    error = await failure(live(f"rtsp://127.0.0.1:{server.port}/x"))
    assert error.fault is SourceFault.REFUSED
    assert "nothing listens" in str(error)


async def test_wrong_files_have_different_messages(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("hello\n" * 100)
    (tmp_path / "folder").mkdir()
    with wave.open(str(tmp_path / "audio.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(16000))
    messages = set()
    for name, fault in (
        ("nothere.mp4", SourceFault.MISSING),
        ("folder", SourceFault.MISSING),
        ("empty.mp4", SourceFault.UNREADABLE),
        ("text.mp4", SourceFault.UNREADABLE),
        ("audio.wav", SourceFault.UNREADABLE),
    ):
        error = await failure(lossless(tmp_path / name))
        assert error.fault is fault
        messages.add(str(error).replace(name, ""))
    assert len(messages) == 5, messages


async def test_a_missing_device_is_reported() -> None:
    error = await failure(live("/dev/video-that-is-not-there"))
    assert error.fault is SourceFault.MISSING


async def test_probe_describes_a_source_or_its_failure(make_folder: Callable[..., Path], serve: Serve) -> None:
    found = await probe(live(make_folder(2)), CaptureStarts())
    assert isinstance(found, SourceInfo)
    assert (found.width, found.height, found.frame_count) == (320, 240, 2)
    missing = await probe(live("/nothere"), CaptureStarts())
    assert isinstance(missing, SourceError)
    assert missing.fault is SourceFault.MISSING
    server = serve(silent)
    start = time.monotonic()
    dead = await probe(live(f"rtsp://127.0.0.1:{server.port}/x", connect_timeout_s=0.5), CaptureStarts())
    assert isinstance(dead, SourceError)
    assert time.monotonic() - start < scaled(2)


async def test_each_source_has_its_own_transport(serve: Serve) -> None:
    transports: tuple[RtspTransport, ...] = ("tcp", "udp")
    servers = {transport: serve(rtsp_describe) for transport in transports}
    async with anyio.create_task_group() as tasks:
        for transport, server in servers.items():
            url = f"rtsp://127.0.0.1:{server.port}/x"
            tasks.start_soon(failure, live(url, transport=transport, connect_timeout_s=2))
    for transport, server in servers.items():
        setups = [text for text in server.requests if text.startswith("SETUP")]
        assert setups
        assert ("RTP/AVP/TCP" in setups[0]) == (transport == "tcp")


def rtsp_describe(server: FakeServer, peer: socket.socket) -> None:
    """Describes one H.264 track, then refuses to set it up."""
    track = "m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=control:t\r\n"
    sdp = f"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nt=0 0\r\n{track}"
    while text := server.receive(peer):
        sequence = text.split("CSeq:")[1].split("\r\n")[0].strip()
        if text.startswith("DESCRIBE"):
            head = f"Content-Type: application/sdp\r\nContent-Length: {len(sdp)}\r\n"
            answer = f"RTSP/1.0 200 OK\r\nCSeq: {sequence}\r\n{head}\r\n{sdp}"
        elif text.startswith("OPTIONS"):
            answer = f"RTSP/1.0 200 OK\r\nCSeq: {sequence}\r\nPublic: OPTIONS, DESCRIBE, SETUP, PLAY\r\n\r\n"
        else:
            answer = f"RTSP/1.0 461 Unsupported transport\r\nCSeq: {sequence}\r\n\r\n"
        peer.sendall(answer.encode())
