"""Which endpoints may be bound, and the lock that keeps a second process from stealing an ipc endpoint.

ZeroMQ removes an existing socket file before it binds, so two services on one ipc path both start, and the first one
goes silent. Here a lock file beside the socket is held for as long as the endpoint is.
"""

import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..config import PublishConfig
from ..errors import PublishError
from ..files.lock import HeldError, take_lock

SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux."""


def check_endpoints(config: PublishConfig) -> None:
    """Check that every endpoint is one that may be bound.

    Raises:
        PublishError: none is given, one is malformed or of another transport, or one can be reached from other machines
            though neither CURVE is set up nor `allow_plaintext` is set.
    """
    if not config.endpoints:
        raise PublishError("no endpoint to publish at")
    for endpoint in config.endpoints:
        if ipc_path(endpoint) is None and not _is_local_tcp(endpoint) and not (config.curve or config.allow_plaintext):
            raise PublishError(
                f"{endpoint} can be reached from other machines, and nothing is encrypted or checked: bind 127.0.0.1, "
                "set up publish.curve, or set publish.allow_plaintext = true"
            )


def ipc_path(endpoint: str) -> str | None:
    """The path of an `ipc://` endpoint, or None for a `tcp://` one. A path from @ on is in the abstract namespace.

    Raises:
        PublishError: neither of the two, or a path that cannot be bound.
    """
    scheme, _, rest = endpoint.partition("://")
    if scheme == "tcp" and ":" in rest:
        return None
    if scheme != "ipc" or rest in {"", "*", "@"}:
        raise PublishError(f"an endpoint is tcp://HOST:PORT or ipc:///PATH, got {endpoint!r}")
    if len(os.fsencode(rest)) > SOCKET_PATH_BYTES:
        raise PublishError(f"{endpoint}: the path of a socket has at most {SOCKET_PATH_BYTES} bytes")
    return rest


def is_ipv6(endpoint: str) -> bool:
    """Whether a `tcp://` endpoint names an IPv6 address."""
    return endpoint.startswith("tcp://[")


def _is_local_tcp(endpoint: str) -> bool:
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if host in {"localhost", "lo"}:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a wildcard or the name of an interface
        return False


@contextmanager
def ipc_lock(endpoint: str) -> Iterator[None]:
    """Hold an `ipc://` endpoint: nobody else binds it meanwhile, and its socket file is removed before and after.

    Raises:
        PublishError: another process holds it, its folder cannot be used, or another kind of file is in its place.
    """
    path = ipc_path(endpoint)
    if path is None or path.startswith("@"):  # the kernel itself guards these
        yield
        return
    descriptor = _take_lock(endpoint, Path(f"{path}.lock"))
    try:
        _remove_stale_socket(endpoint, Path(path))
        try:
            yield
        finally:
            Path(path).unlink(missing_ok=True)  # libzmq leaves it
    finally:
        os.close(descriptor)


def _take_lock(endpoint: str, path: Path) -> int:
    try:
        return take_lock(path)
    except HeldError as exc:
        advice = "a second service needs other publish.endpoints"
        raise PublishError(f"cannot bind {endpoint}: {exc} publishes there already; {advice}") from exc
    except OSError as exc:
        raise PublishError(f"cannot bind {endpoint}: its lock file {path}: {exc.strerror}") from exc


def _remove_stale_socket(endpoint: str, path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise PublishError(f"cannot bind {endpoint}: {path} is a file of another kind, and is left alone")
    if _answers(path):
        raise PublishError(f"cannot bind {endpoint}: a process that does not lock it publishes there already")
    with suppress(FileNotFoundError):
        path.unlink()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
        return True
