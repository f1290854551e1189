"""Finds out whether anything answers at a source's address, from the event loop, before a process is started for it."""

import errno
import ipaddress
import os
import socket
from contextlib import closing

import anyio

from ..config import CameraConfig
from ..errors import SourceError, SourceFault
from ..sources.redact import redact_url
from ..sources.registry import parse_source

_REASONS = {
    errno.ECONNREFUSED: "nothing listens at this host and port",
    errno.EHOSTUNREACH: "its host cannot be reached",
    errno.ENETUNREACH: "its host cannot be reached",
}


async def knock(config: CameraConfig) -> None:
    """Connect to a source's TCP port, and close the connection.

    Returns at once for a source without such an address, and for a host name: a resolver that does not answer would
    block a thread of the service.

    Raises:
        SourceError: the connection was refused (fault `REFUSED`), or nothing answered within `connect_timeout_s` (fault
            `TIMEOUT`).
    """
    spec = parse_source(config.source)
    if spec.address is None or not _is_numeric(spec.address[0]):
        return
    host, port = spec.address
    name = redact_url(config.source)
    try:
        with anyio.fail_after(config.connect_timeout_s):
            await _connect(host, port)
    except TimeoutError as exc:
        reason = f"its host did not answer within {config.connect_timeout_s:g} s"
        raise SourceError(SourceFault.TIMEOUT, f"{name} cannot be opened: {reason}") from exc
    except OSError as exc:
        if exc.errno == errno.ETIMEDOUT:
            raise SourceError(SourceFault.TIMEOUT, f"{name} cannot be opened: its host did not answer") from exc
        if exc.errno in _REASONS:
            reason = f"{_REASONS[exc.errno]} [{os.strerror(exc.errno)}]"
            raise SourceError(SourceFault.REFUSED, f"{name} cannot be opened: {reason}") from exc
        # Anything else, such as a full table of descriptors, says nothing about the source.


def _is_numeric(host: str) -> bool:
    try:
        return not getattr(ipaddress.ip_address(host), "scope_id", None)
    except ValueError:
        return False


async def _connect(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)) as sock:
        number = sock.connect_ex((host, port))
        if number == errno.EINPROGRESS:
            await anyio.wait_writable(sock)
            number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number:
        raise OSError(number, os.strerror(number))
