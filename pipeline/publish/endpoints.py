"""Checks which endpoints may be bound, and locks ipc endpoints against a second process.

ZeroMQ removes an existing socket file before it binds, so two services on one ipc path both start, and the first one
goes silent. Therefore a lock file beside the socket is held for as long as the endpoint is bound.
"""

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..config import PublishConfig
from ..errors import AccessError, PublishError
from ..files.lock import HeldError, take_lock
from ..files.ownership import NotOursError, check_made_by_us, check_way

SOCKET_PATH_BYTES = 107
"""Maximum length of a Unix socket's path on Linux, in bytes."""

NO_ADDRESS = "this machine has no such address; use an IP address or the name of an interface"
"""Why an endpoint of an address that is not this machine's cannot be bound."""

_FIELD = "endpoints"


def check_endpoints(config: PublishConfig) -> None:
    """Check that every endpoint may be bound.

    Raises:
        PublishError: there is no endpoint, an endpoint is malformed or uses another transport, or an endpoint is
            reachable from other machines although neither `curve` nor `allow_plaintext` is set.
    """
    if not config.endpoints:
        raise PublishError("there is no endpoint to publish at", _FIELD)
    for endpoint in config.bound:
        if ipc_path(endpoint) is None and not _is_local_tcp(endpoint) and not (config.curve or config.allow_plaintext):
            raise PublishError(
                f"{endpoint} is reachable from other machines, without encryption or authentication: bind 127.0.0.1, "
                "configure CURVE keys, or set allow_plaintext",
                _FIELD,
            )


def ipc_path(endpoint: str) -> str | None:
    """The path of an `ipc://` endpoint, or None for a `tcp://` one. A path that begins with @ is an abstract socket.

    Raises:
        PublishError: the endpoint is neither `ipc://` nor `tcp://`, or its path is too long or cannot be bound.
    """
    scheme, _, rest = endpoint.partition("://")
    if scheme == "tcp" and ":" in rest:
        return None
    if scheme != "ipc" or rest in {"", "*", "@"}:
        raise PublishError(f"expected tcp://HOST:PORT or ipc:///PATH, got {endpoint!r}", _FIELD)
    if len(os.fsencode(rest)) > SOCKET_PATH_BYTES:
        raise PublishError(f"{endpoint}: the path of a socket has at most {SOCKET_PATH_BYTES} bytes", _FIELD)
    return rest


def is_same_socket(one: str, other: str) -> bool:
    """Whether two valid endpoints cannot both be bound: they are spellings of the same address, or one covers the
    other.
    """
    paths = ipc_path(one), ipc_path(other)
    if None not in paths:
        first, second = (path if path.startswith("@") else os.path.realpath(path) for path in paths if path)
        return first == second
    if paths != (None, None):
        return False
    (host, port), (other_host, other_port) = _address(one), _address(other)
    if port != other_port or port in ("0", "*"):
        return False
    hosts = {host, other_host}
    is_covered = "::" in hosts or ("0.0.0.0" in hosts and not any(":" in name for name in hosts))
    return host == other_host or is_covered


def _address(endpoint: str) -> tuple[str, str]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    host = {"localhost": "127.0.0.1", "lo": "127.0.0.1", "*": "0.0.0.0"}.get(host.strip("[]"), host.strip("[]"))
    with suppress(ValueError):
        host = str(ipaddress.ip_address(host))
    return host, str(int(port)) if port.isascii() and port.isdigit() else port


def is_ipv6(endpoint: str) -> bool:
    """Whether a `tcp://` endpoint has an IPv6 address."""
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
    """Hold the lock of an `ipc://` endpoint, and remove its socket file before and after.

    Raises:
        AccessError: another user made one of its files, or could replace its socket.
        PublishError: another process holds the lock, the folder cannot be used, or a file that is not a socket is in
            the way.
    """
    path = ipc_path(endpoint)
    if path is None or path.startswith("@"):  # the kernel protects abstract sockets
        yield
        return
    with _owned(endpoint):
        descriptor = _take_lock(endpoint, Path(f"{path}.lock"))
    try:
        _remove_stale_socket(endpoint, Path(path))
        try:
            yield
        finally:
            Path(path).unlink(missing_ok=True)  # libzmq leaves the socket file
    finally:
        os.close(descriptor)


def check_access(endpoint: str) -> None:
    """Find out, without making anything, whether an endpoint cannot be bound because of another user or its address.

    Raises:
        AccessError: another user made one of its files, or could replace its socket.
        PublishError: a file that is not a socket is in the way, or this machine lacks the address.
    """
    path = ipc_path(endpoint)
    if path is None:
        _check_address(endpoint)
    if path is None or path.startswith("@"):
        return
    with _owned(endpoint), suppress(OSError):  # an OSError is reported where the file is used
        check_way(Path(path))
        for file, kind in ((Path(f"{path}.lock"), stat.S_IFREG), (Path(path), stat.S_IFSOCK)):
            if not os.path.lexists(file):
                continue
            if kind == stat.S_IFSOCK:
                _check_is_socket(endpoint, file, file.lstat())
            check_made_by_us(file, file.lstat(), kind)


def _check_address(endpoint: str) -> None:
    # Nothing is bound at the endpoint's own port: a service may run there.
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if host == "*" or host in (name for _, name in socket.if_nameindex()):
        return
    try:
        address = ipaddress.ip_address(host)
        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except ValueError:
        is_known = host == "localhost"
    except OSError as exc:
        is_known = exc.errno != errno.EADDRNOTAVAIL
    else:
        is_known = True
    if not is_known:
        raise PublishError(f"cannot bind {endpoint}: {NO_ADDRESS}", _FIELD)


@contextmanager
def _owned(endpoint: str) -> Iterator[None]:
    try:
        yield
    except NotOursError as exc:
        raise AccessError(f"cannot bind {endpoint}: {exc}", _FIELD) from exc


def _take_lock(endpoint: str, path: Path) -> int:
    try:
        check_way(path)
        return take_lock(path)
    except HeldError as exc:
        reason = f"{exc} already publishes there; a second service needs its own endpoints"
        raise PublishError(f"cannot bind {endpoint}: {reason}", _FIELD) from exc
    except OSError as exc:
        raise PublishError(f"cannot bind {endpoint}: cannot lock {path}: {exc.strerror}", _FIELD) from exc


def _remove_stale_socket(endpoint: str, path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    _check_is_socket(endpoint, path, found)
    with _owned(endpoint):
        check_made_by_us(path, found, stat.S_IFSOCK)
    if _answers(path):
        raise PublishError(
            f"cannot bind {endpoint}: another process, which does not lock it, already publishes there", _FIELD
        )
    with suppress(FileNotFoundError):
        path.unlink()


def _check_is_socket(endpoint: str, path: Path, found: os.stat_result) -> None:
    if not stat.S_ISSOCK(found.st_mode):
        raise PublishError(f"cannot bind {endpoint}: {path} exists and is not a socket; it is not removed", _FIELD)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
        return True
