"""Endpoints: what may be bound, who holds it, and what an error says."""

import os
import socket
import stat
from functools import partial
from pathlib import Path

import pytest

from retinad.client import Subscriber
from retinad.client.wire import HelloHeader, ModelHeader
from retinad.pipeline.config import CurveConfig, PublishConfig
from retinad.pipeline.errors import AccessError, PublishError
from retinad.pipeline.publish.endpoints import check_access, check_endpoints, is_same_socket
from retinad.pipeline.publish.publisher import Publisher

from .rig import TCP, make_publisher, poll_until, publish, receive_features


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(PublishError, match=f"cannot bind {endpoint}: another process uses it"):
            make_publisher(TCP, endpoint).open()


@pytest.mark.parametrize("endpoint", ["tcp://192.0.2.1:0", "tcp://127.0.0.1:x"])
def test_what_cannot_be_bound_is_a_publish_error(endpoint: str) -> None:
    with pytest.raises(PublishError, match=f"cannot bind {endpoint}"):
        make_publisher(endpoint, allow_plaintext=True).open()


@pytest.mark.parametrize(
    "endpoint", ["", "nonsense", "inproc://x", "ipc://", "ipc://*", "tcp://nowhere", "ipc:///" + "x" * 107]
)
def test_a_malformed_endpoint_is_a_publish_error(endpoint: str) -> None:
    with pytest.raises(PublishError):
        make_publisher(endpoint).open()


def test_no_endpoint_at_all_is_a_publish_error() -> None:
    with pytest.raises(PublishError, match="no endpoint"):
        Publisher(
            PublishConfig(endpoints=()),
            model=ModelHeader(name="m", weights="w"),
            largest_message_bytes=1,
            describe=HelloHeader,
        ).open()


@pytest.mark.parametrize(
    "host", ["*", "0.0.0.0", "[::]", "192.168.1.5", "eth0", "retina.example", "[::ffff:192.0.2.1]"]
)
def test_other_machines_need_curve_or_consent(host: str, tmp_path: Path) -> None:
    endpoint = f"tcp://{host}:5555"
    with pytest.raises(PublishError, match="allow_plaintext"):
        check_endpoints(PublishConfig(endpoints=(endpoint,)))
    check_endpoints(PublishConfig(endpoints=(endpoint,), allow_plaintext=True))
    check_endpoints(PublishConfig(endpoints=(endpoint,), curve=CurveConfig(tmp_path, tmp_path)))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "lo", "[::1]"])
def test_this_machine_needs_no_consent(host: str) -> None:
    check_endpoints(PublishConfig(endpoints=(f"tcp://{host}:5555", "ipc:///run/x")))


def test_an_error_names_the_field_that_is_at_fault(tmp_path: Path) -> None:
    """The service renders the field as a key of its config, so the text itself has none."""
    (tmp_path / "file").touch()
    for endpoint in ("nonsense", "tcp://192.0.2.1:5555", "ipc:///" + "x" * 107, f"ipc://{tmp_path}/file"):
        with pytest.raises(PublishError) as caught:
            make_publisher(endpoint).open()
        assert caught.value.field == "endpoints"
        assert "publish." not in str(caught.value)


def test_ipv6_loopback_works() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        publisher = make_publisher("tcp://[::1]:0")
        publisher.open()
    except PublishError:
        pytest.skip("no IPv6 loopback here")
    with publisher, Subscriber(publisher.endpoints[0]) as subscriber:
        poll_until(publisher, "subscriptions_total", 2)
        publish(publisher, "cam1", 0)
        assert receive_features(subscriber).camera == "cam1"


def test_an_ipc_endpoint_cannot_be_stolen_and_its_holder_is_named(tmp_path: Path) -> None:
    """libzmq itself would remove the socket file of the first service, and leave it silent."""
    endpoint = f"ipc://{tmp_path}/s"
    with make_publisher(endpoint) as publisher, Subscriber(endpoint) as subscriber:
        with pytest.raises(
            PublishError, match=f"cannot bind {endpoint}: process {os.getpid()} already publishes there"
        ):
            make_publisher(endpoint).open()
        poll_until(publisher, "subscriptions_total", 2)
        publish(publisher, "cam1", 0)
        assert receive_features(subscriber).camera == "cam1"


def test_an_ipc_endpoint_held_without_a_lock_is_left_alone(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{tmp_path}/s")
        other.listen()
        with pytest.raises(PublishError, match="does not lock it"):
            make_publisher(f"ipc://{tmp_path}/s").open()


def test_a_socket_file_is_for_the_group_and_goes_with_the_publisher(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))  # left by a process that was killed
    umask = os.umask(0o022)
    try:
        with make_publisher(f"ipc://{path}"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert not path.exists()
        with make_publisher(f"ipc://{path}"):
            assert path.is_socket()
    finally:
        assert os.umask(umask) == 0o022


def test_a_file_that_is_not_a_socket_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(PublishError, match="is not a socket; it is not removed"):
        make_publisher(f"ipc://{tmp_path}/precious").open()
    assert (tmp_path / "precious").read_text() == "data"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["s", "s.lock"])
def test_a_socket_or_lock_of_another_user_is_refused_and_kept(tmp_path: Path, name: str) -> None:
    """Even a dead socket: who made the first can make the next."""
    if name == "s":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{tmp_path}/s")
    else:
        (tmp_path / name).touch()
    os.chown(tmp_path / name, 12345, 12345)
    with pytest.raises(AccessError, match=rf"cannot bind ipc://{tmp_path}/s: .*{name} belongs to another user"):
        make_publisher(f"ipc://{tmp_path}/s").open()
    assert (tmp_path / name).exists()


def test_a_socket_in_a_folder_that_everyone_can_empty_is_refused(tmp_path: Path) -> None:
    """Whoever removes it can publish in its place. The sticky bit, as /tmp has it, prevents that."""
    tmp_path.chmod(0o777)
    with pytest.raises(AccessError, match="every user can replace what is in"):
        make_publisher(f"ipc://{tmp_path}/s").open()
    tmp_path.chmod(0o1777)
    with make_publisher(f"ipc://{tmp_path}/s"):
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_socket_in_a_folder_of_another_user_is_refused(tmp_path: Path, mode: int) -> None:
    """The sticky bit does not bind a folder's owner."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(mode)
    os.chown(tmp_path / "theirs", 12345, 12345)
    endpoint = f"ipc://{tmp_path}/theirs/s"
    for use in (make_publisher(endpoint).open, partial(check_access, endpoint)):
        with pytest.raises(AccessError, match=rf"{tmp_path}/theirs belongs to another user, uid 12345"):
            use()
    assert not list((tmp_path / "theirs").iterdir())


@pytest.mark.parametrize("endpoint", ["ipc:///tmp/s", "ipc:///run/s", "ipc://@name", "tcp://127.0.0.1:5555"])
def test_folders_of_the_system_and_what_is_no_file_are_fine(endpoint: str) -> None:
    check_access(endpoint)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match=r"none/s\.lock: No such file or directory"):
        make_publisher(f"ipc://{tmp_path}/none/s").open()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:05555"),
        ("tcp://127.0.0.1:5555", "tcp://localhost:5555"),
        ("tcp://lo:5555", "tcp://127.0.0.1:5555"),
        ("tcp://[::1]:5555", "tcp://[0:0:0:0:0:0:0:1]:5555"),
        ("tcp://*:5555", "tcp://0.0.0.0:5555"),
        ("tcp://*:5555", "tcp://127.0.0.1:5555"),
        ("tcp://[::]:5555", "tcp://[::1]:5555"),
        ("ipc:///run/x/s", "ipc:///run//x/./s"),
        ("ipc:///run/x/s", "ipc:///run/y/../x/s"),
        ("ipc://@name", "ipc://@name"),
    ],
)
def test_one_socket_spelt_in_two_ways_is_recognized(one: str, other: str) -> None:
    assert is_same_socket(one, other)
    assert is_same_socket(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556"),
        ("tcp://127.0.0.1:5555", "tcp://127.0.0.2:5555"),
        ("tcp://127.0.0.1:5555", "tcp://[::1]:5555"),
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"),
        ("ipc:///run/x/s", "ipc:///run/x/t"),
        ("ipc://@name", "ipc://name"),
        ("ipc:///run/5555", "tcp://127.0.0.1:5555"),
    ],
)
def test_different_sockets_are_different(one: str, other: str) -> None:
    assert not is_same_socket(one, other)


def test_a_socket_behind_a_link_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert is_same_socket(f"ipc://{tmp_path}/s", f"ipc://{tmp_path}/link/s")
