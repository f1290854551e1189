"""Asks a service where a picture was taken, from what one of its cameras remembers now."""

import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

import zmq

from .connection import CurveKeys, set_curve
from .query import decode_answer, encode_query
from .record import FeaturesRecord

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11; the client runs on 3.10 too

_MAX_PART_BYTES = 1 << 30


class Locator:
    """A client of a service's `locate_endpoint`. A context manager; use it on one thread.

    Args:
        endpoint: the service's `publish.locate_endpoint`, such as `ipc:///run/retinad/locate.sock`.
        curve: keys for a service that uses CURVE, or None.

    Raises:
        ValueError: the endpoint or a key file is invalid.
    """

    def __init__(self, endpoint: str, *, curve: CurveKeys | None = None) -> None:
        self._endpoint = endpoint
        self._context = zmq.Context(io_threads=1)
        try:
            self._socket = self._context.socket(zmq.REQ)
            # A request that was not answered in time does not block the next one, and its late answer is dropped.
            self._socket.setsockopt(zmq.REQ_RELAXED, 1)
            self._socket.setsockopt(zmq.REQ_CORRELATE, 1)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_PART_BYTES)
            self._socket.setsockopt(zmq.IPV6, int("://[" in endpoint))
            if curve:
                set_curve(self._socket, curve)
            self._connect()
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def locate(self, camera: str, picture: bytes, *, timeout_s: float = 10.0) -> FeaturesRecord:
        """Find where a picture was taken. The camera's stream does not change.

        Args:
            camera: name of the camera whose memory is asked. The picture may be from any camera.
            picture: the bytes of its file: JPEG, PNG, or another format that OpenCV reads.
            timeout_s: seconds to wait for the answer.

        Returns:
            a record with the picture's pose, and its depth if the camera publishes depth, in the frame of reference and
            unit of the camera's records; `source_intrinsics` and `to_source` are for the picture's pixels.

        Raises:
            QueryError: the service cannot answer; the text says why.
            TimeoutError: no answer came in time.
            ValueError: the picture is empty or has more than 16 MiB.
            WireError: the answer is malformed.
        """
        deadline_s = time.monotonic() + timeout_s
        self._socket.send_multipart(encode_query(camera, picture, timeout_s))
        while (left_s := deadline_s - time.monotonic()) > 0:
            if self._socket.poll(round(left_s * 1000) + 1):
                with suppress(zmq.Again):  # what came was the late answer to an earlier request
                    parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                    return decode_answer([part.buffer for part in parts])
        raise TimeoutError(
            f"no answer from {self._endpoint} in {timeout_s:g} s: check that the service runs, that this is its "
            "publish.locate_endpoint, and, if it encrypts, the CURVE keys"
        )

    def close(self) -> None:
        """Close the connection. Idempotent. Records already received stay valid."""
        self._context.destroy(linger=0)

    def _connect(self) -> None:
        try:
            self._socket.connect(self._endpoint)
        except zmq.ZMQError as exc:
            form = "an endpoint is tcp://HOST:PORT or ipc:///PATH"
            raise ValueError(f"cannot connect to {self._endpoint!r} ({form}): {exc.strerror}") from exc
