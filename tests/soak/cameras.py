"""Cameras that a test can power off, freeze, and switch to another image size."""

import itertools
import socket
import threading
from pathlib import Path

import cv2
import numpy as np

from ..pipeline.capture.servers import FakeServer

SIZES = ((160, 120), (200, 120), (160, 160))


class NetworkCamera:
    """Motion JPEG over HTTP, served by a thread of this process.

    Attributes:
        size: width and height of the next images.
        frozen: whether it stays connected but sends nothing.
    """

    def __init__(self, fps: float) -> None:
        self.size = SIZES[0]
        self.frozen = False
        self._interval_s = 1 / fps
        self._off = threading.Event()
        self._server = FakeServer(self._serve)

    def source(self, user: str, password: str) -> str:
        """Its address, with credentials that it does not check."""
        return f"http://{user}:{password}@127.0.0.1:{self._server.port}/stream"

    def power_off(self) -> None:
        """Stop listening and close all connections. Idempotent."""
        if not self._off.is_set():
            self._off.set()
            self._server.stop()

    def power_on(self) -> None:
        """Listen on the same port again. Idempotent."""
        if self._off.is_set():
            self._off.clear()
            self._server.start()

    def _serve(self, server: FakeServer, peer: socket.socket) -> None:
        server.receive(peer)
        peer.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary=f\r\n\r\n")
        for number in itertools.count():
            if not self.frozen:
                data = encoded(number, self.size)
                peer.sendall(b"--f\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(data))
                peer.sendall(data + b"\r\n")
            if self._off.wait(self._interval_s):
                return


class ImageFolder:
    """Images that are played in order; some can be damaged, or replaced by one of another size, for a while."""

    def __init__(self, path: Path, count: int) -> None:
        self.path = path
        self.count = count
        path.mkdir()
        for number in range(count):
            self.restore(number)

    def restore(self, number: int) -> None:
        """Write a valid image of the usual size."""
        self._write(number, encoded(number, SIZES[0]))

    def resize(self, number: int) -> None:
        """Write an image of another size."""
        self._write(number, encoded(number, SIZES[1]))

    def damage(self, number: int) -> None:
        """Write a truncated image."""
        self._write(number, encoded(number, SIZES[0])[:200])

    def _write(self, number: int, data: bytes) -> None:
        draft = self.path.with_name(f"{number}.draft")
        draft.write_bytes(data)
        draft.replace(self.path / f"{number}.jpg")


def encoded(number: int, size: tuple[int, int]) -> bytes:
    """A JPEG image, different for each number."""
    coarse = np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)
    return cv2.imencode(".jpg", cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC))[1].tobytes()
