"""Computes the answers to ZeroMQ's authentication requests (ZAP 1.0, rfc.zeromq.org/spec/27). Uses no sockets.

If no one answers these requests, CURVE encrypts, but accepts any client with any key pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
"""Endpoint to which libzmq sends its authentication requests."""

_REQUEST_PARTS = 7


@dataclass(frozen=True, slots=True)
class ZapRequest:
    """A request for access with CURVE.

    Attributes:
        peer: host, or `process N` on an ipc endpoint.
        key: the client's public key.
    """

    peer: str
    key: bytes

    @classmethod
    def of(cls, request: Sequence[bytes]) -> Self | None:
        """Parse the request from the parts of a message. Returns None if it is malformed."""
        if len(request) != _REQUEST_PARTS:
            return None
        host, *ids = request[3].decode("ascii", "replace").split(":")
        is_process = len(ids) == 3 and all(part.isdigit() for part in ids) and host == "localhost"
        return cls(f"process {ids[2]}" if is_process else ":".join((host, *ids)), request[6])


def zap_reply(request: Sequence[bytes], authorized_keys: frozenset[bytes]) -> list[bytes]:
    """Answer one request: 200 for a CURVE client whose public key is authorized, 400 for anyone else.

    Args:
        request: the parts of the request: version, request id, domain, address, identity, mechanism, the client's
            public key.
        authorized_keys: the authorized public keys, 32 bytes each.
    """
    request_id = request[1] if len(request) > 1 else b""
    if (
        len(request) == _REQUEST_PARTS
        and request[0] == b"1.0"
        and request[5] == b"CURVE"
        and request[6] in authorized_keys
    ):
        return [b"1.0", request_id, b"200", b"OK", b"", b""]
    return [b"1.0", request_id, b"400", b"this key is not authorised", b"", b""]
