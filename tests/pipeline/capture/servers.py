"""Misbehaving cameras on loopback, and images that show a number."""

import itertools
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import cv2
import numpy as np

from ...deadlines import scaled

Handler = Callable[["FakeServer", socket.socket], None]


class FakeServer:
    """A TCP server whose handler plays a camera; `restart` brings it back on the same port."""

    def __init__(self, handler: Handler) -> None:
        self.requests: list[str] = []
        self.speakers: set[tuple[str, int]] = set()
        self._handler = handler
        self._peers: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.port = 0
        self.start()

    def start(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._run(self._accept, self._listener)

    def stop(self) -> None:
        """Lose power: close the listener and all connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self._peers:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        self._peers, self._threads = [], []

    def restart(self) -> None:
        self.stop()
        self.start()

    def receive(self, peer: socket.socket) -> str:
        text = peer.recv(65536).decode("latin-1")
        self.requests.append(text)
        if text:  # a service that only knocks says nothing
            self.speakers.add(peer.getpeername())
        return text

    def asked_for(self, method: str) -> bool:
        """Wait until a request of this method has arrived. False if none comes in time.

        The last request of a client that exits arrives after its exit has been noticed.
        """
        deadline = time.monotonic() + scaled(2)
        while time.monotonic() < deadline:
            if any(text.startswith(method) for text in list(self.requests)):
                return True
            time.sleep(0.01)
        return False

    def _run(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                self._peers.append(peer)
                self._run(self._serve, peer)

    def _serve(self, peer: socket.socket) -> None:
        with peer, suppress(OSError):
            if peer.recv(1, socket.MSG_PEEK):  # not for a camera that only looks whether something listens here
                self._handler(self, peer)


def silent(server: FakeServer, peer: socket.socket) -> None:
    """Accepts and reads, but never answers."""
    while server.receive(peer):
        pass


def shy(server: FakeServer, peer: socket.socket) -> None:
    """Closes without an answer, as cameras with too many viewers do."""
    server.receive(peer)


def garbage(server: FakeServer, peer: socket.socket) -> None:
    server.receive(peer)
    peer.sendall(np.random.default_rng(0).bytes(4096))


def rtsp_status(status: str, *logins: str) -> Handler:
    """A response with an error; with 401 it offers these ways to log in, or Basic."""

    def handler(server: FakeServer, peer: socket.socket) -> None:
        while text := server.receive(peer):
            number = re.search(r"CSeq: *(\d+)", text, re.IGNORECASE)
            offered = (logins or ('Basic realm="camera"',)) if status.startswith("401") else ()
            extra = "".join(f"WWW-Authenticate: {login}\r\n" for login in offered)
            sequence = number[1] if number else "1"
            peer.sendall(f"RTSP/1.0 {status}\r\nCSeq: {sequence}\r\n{extra}\r\n".encode())

    return handler


def rtsp_player(stream: bytes, packets: int | None = None) -> Handler:
    """Plays an MPEG transport stream in a loop, by UDP, until it is asked to stop (TEARDOWN) or falls silent."""
    track = "m=video 0 RTP/AVP 33\r\na=rtpmap:33 MP2T/90000\r\na=control:t\r\n"
    sdp = f"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nt=0 0\r\n{track}"
    parts = [stream[start : start + 7 * 188] for start in range(0, len(stream), 7 * 188)]

    def send(sink: socket.socket, stopped: threading.Event) -> None:
        for number, part in enumerate(itertools.islice(itertools.cycle(parts), packets)):
            head = struct.pack(">BBHII", 0x80, 33, number & 0xFFFF, number * 900 & 0xFFFFFFFF, 7)
            sink.send(head + part)
            if stopped.wait(0.004):
                return

    def handler(server: FakeServer, peer: socket.socket) -> None:
        stopped = threading.Event()
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sink:
            sink.bind(("127.0.0.1", 0))
            while text := server.receive(peer):
                extra, body = "Session: 1\r\n", ""
                if text.startswith("OPTIONS"):
                    extra = "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\n"
                elif text.startswith("DESCRIBE"):
                    extra, body = f"Content-Type: application/sdp\r\nContent-Length: {len(sdp)}\r\n", sdp
                elif found := re.search(r"client_port=(\d+)-(\d+)", text):
                    sink.connect(("127.0.0.1", int(found[1])))
                    port = sink.getsockname()[1]
                    ports = f"{found[0]};server_port={port}-{port + 1}"
                    extra += f"Transport: RTP/AVP/UDP;unicast;{ports}\r\n"
                elif text.startswith("TEARDOWN"):
                    stopped.set()
                sequence = text.split("CSeq:")[1].split("\r\n")[0].strip()
                peer.sendall(f"RTSP/1.0 200 OK\r\nCSeq: {sequence}\r\n{extra}\r\n{body}".encode())
                if text.startswith("PLAY"):
                    threading.Thread(target=send, args=(sink, stopped), daemon=True).start()
            stopped.set()

    return handler


def http_status(status: str, login: str = 'Basic realm="camera"') -> Handler:
    """A response without content; with 401 it asks for this login, or names none."""

    def handler(server: FakeServer, peer: socket.socket) -> None:
        server.receive(peer)
        extra = f"WWW-Authenticate: {login}\r\n" if status.startswith("401") and login else ""
        peer.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n{extra}\r\n".encode())

    return handler


def mjpeg(fps: float, frames: int | None = None, *, stall: bool = False) -> Handler:
    """Multipart JPEG over HTTP with numbered images; after `frames` it falls silent or closes."""

    def handler(server: FakeServer, peer: socket.socket) -> None:
        server.receive(peer)
        peer.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=f\r\n\r\n")
        began = time.monotonic()
        for number in itertools.count() if frames is None else range(frames):
            data = cv2.imencode(".jpg", draw_number(number))[1].tobytes()
            peer.sendall(b"--f\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(data))
            peer.sendall(data + b"\r\n")
            time.sleep(max(0.0, began + (number + 1) / fps - time.monotonic()))  # keeps the rate on a busy machine too
        while stall and server.receive(peer):
            pass

    return handler


def multipart(*heads: str, fps: float = 50, ends: str = "\r\n", boundary: str = "f") -> Handler:
    """Multipart images whose parts have these header lines in turn; `%d` stands for the length."""

    def handler(server: FakeServer, peer: socket.socket) -> None:
        server.receive(peer)
        peer.sendall(f"HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace;boundary={boundary}\r\n\r\n".encode())
        for number in itertools.count():
            head = heads[number % len(heads)]
            data = cv2.imencode(".png" if "png" in head else ".jpg", draw_number(number))[1].tobytes()
            text = head % len(data) if "%d" in head else head
            peer.sendall(f"--f{ends}{text}{ends if text else ''}{ends}".encode() + data + ends.encode())
            time.sleep(1 / fps)

    return handler


def snapshot(*, length: bool = True, keep: bool = True, login: str = "", delay: float = 0.0) -> Handler:
    """One image a request, numbered over the connection; with a login, only for requests that answer it."""

    def handler(server: FakeServer, peer: socket.socket) -> None:
        for number in itertools.count():
            if not (text := server.receive(peer)):
                return
            if login and "Authorization" not in text:
                peer.sendall(f"HTTP/1.1 401 No\r\nWWW-Authenticate: {login}\r\nContent-Length: 0\r\n\r\n".encode())
                continue
            data = cv2.imencode(".jpg", draw_number(number))[1].tobytes()
            size = f"Content-Length: {len(data)}\r\n" if length else "Connection: close\r\n"
            peer.sendall(f"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\n{size}\r\n".encode())
            time.sleep(delay)
            peer.sendall(data)
            if not (length and keep):
                return

    return handler


def resizing(size: tuple[int, int], after: int, fps: float = 50) -> Handler:
    """As `mjpeg`; after this many images of 320x240, counted over all connections, all have the new size."""
    sent = itertools.count()

    def handler(server: FakeServer, peer: socket.socket) -> None:
        server.receive(peer)
        peer.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=f\r\n\r\n")
        for number in sent:
            data = cv2.imencode(".jpg", draw_number(number, *(size if number >= after else (320, 240))))[1].tobytes()
            peer.sendall(b"--f\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(data))
            peer.sendall(data + b"\r\n")
            time.sleep(1 / fps)

    return handler


def files(folder: Path, keep: float = 1.0) -> Handler:
    """A web server for a folder that closes after each file; it sends only this share of each."""

    def handler(server: FakeServer, peer: socket.socket) -> None:
        name = server.receive(peer).split()[1].rpartition("/")[2].partition("?")[0]
        data = (folder / name).read_bytes()
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(data))
        peer.sendall(data[: round(len(data) * keep)])

    return handler


def draw_number(number: int, width: int = 320, height: int = 240) -> np.ndarray:
    """An image of 16 bars, the bits of the number, lowest first."""
    bits = (number >> np.arange(16)) & 1
    row = np.repeat(bits.astype(np.uint8) * 255, width // 16)
    return np.ascontiguousarray(np.broadcast_to(row[None, :, None], (height, width, 3)))


def read_number(pixels: np.ndarray) -> int:
    height, width, _ = pixels.shape
    step = width // 16
    middle = pixels[height // 2, step // 2 :: step].mean(axis=-1)[:16]
    return int(sum(1 << place for place in np.flatnonzero(middle > 127).tolist()))
