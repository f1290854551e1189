"""A hand-written ZMTP 3.0 peer (rfc.zeromq.org/spec/23) that can send invalid bytes."""

import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

MORE, LONG, COMMAND = 1, 2, 4
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def frame(body: bytes, flags: int = 0, claimed: int | None = None) -> bytes:
    """One frame, optionally with a false size."""
    size = len(body) if claimed is None else claimed
    long = bool(flags & LONG) or size > 255
    return bytes([flags | LONG * long]) + (struct.pack(">Q", size) if long else bytes([size])) + body


def ready(role: bytes) -> bytes:
    """The READY command that ends the handshake; `role` is a socket type such as PUB."""
    return frame(b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(role)) + role, COMMAND)


READY = ready(b"PUB")


def message(parts: Sequence[bytes]) -> bytes:
    """The frames of a message."""
    return b"".join(frame(part, MORE) for part in parts[:-1]) + frame(parts[-1])


@contextmanager
def peer(first: bytes, later: bytes, *, greets: bool = True) -> Iterator[str]:
    """A listening peer: sends `first` to the first connection and closes it, then `later` to every other one.

    Args:
        first, later: bytes to send after the handshake.
        greets: whether the first connection gets a handshake.

    Yields:
        The endpoint.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, first, later, greets), daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def _serve(listener: socket.socket, first: bytes, later: bytes, greets: bool) -> None:
    with suppress(OSError):
        _talk(listener.accept()[0], first, greets=greets, patience_s=0.02)
        while True:
            _talk(listener.accept()[0], later, greets=True, patience_s=5.0)


def _talk(connection: socket.socket, data: bytes, *, greets: bool, patience_s: float) -> None:
    with connection, suppress(OSError):
        connection.settimeout(5.0)
        if greets:  # bytes sent before both sides are READY are not a message
            connection.sendall(GREETING + READY)
            heard = b""
            while b"READY" not in heard:
                heard += connection.recv(4096)
        connection.sendall(data)
        connection.settimeout(patience_s)
        while connection.recv(65536):  # closing at once would discard bytes in flight
            pass
