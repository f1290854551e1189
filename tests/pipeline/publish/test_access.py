"""Access control: only clients with an authorized key are accepted, and broken key files are named."""

import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
import zmq.auth

from retinad.client import CurveKeys, Subscriber
from retinad.client.curve_keys import decode_key, load_keys
from retinad.pipeline.config import CurveConfig
from retinad.pipeline.errors import AccessError, PublishError
from retinad.pipeline.publish.authorized_keys import AuthorizedKeys
from retinad.pipeline.publish.refusals import Refusal, Refusals
from retinad.pipeline.publish.secret_key import secret_key_note
from retinad.pipeline.publish.zap import zap_reply

from ...deadlines import scaled
from .rig import TCP, Keys, make_publisher, poll_until, polled_elsewhere, receive_features


def test_curve_accepts_authorized_clients_only(keys: Keys) -> None:
    """Without a ZAP handler any key pair is accepted (measured)."""
    publisher = make_publisher(curve=keys.config())
    welcome = keys.client("welcome", authorized=True)
    with polled_elsewhere(publisher):
        endpoint = publisher.endpoints[0]
        with Subscriber(endpoint, curve=welcome) as subscriber:
            assert receive_features(subscriber).camera == "cam1"
            assert (publisher.statistics().unauthorized, publisher.statistics().handshake_failures) == (0, 0)
        with (
            Subscriber(endpoint, curve=keys.client("stranger", authorized=False)) as subscriber,
            pytest.raises(TimeoutError, match=r"refuses the connection\. Check the CURVE keys"),
        ):
            subscriber.receive(0.5)
        assert publisher.statistics().unauthorized >= 1
        with Subscriber(endpoint) as subscriber, pytest.raises(TimeoutError, match=r"refuses|not connected"):
            subscriber.receive(0.5)
        wrong = CurveKeys(welcome.client_secret_key_file, keys.make("other")[0])
        with (
            Subscriber(endpoint, curve=wrong) as subscriber,
            pytest.raises(TimeoutError, match=r"refuses|not connected"),
        ):
            subscriber.receive(0.5)
        assert publisher.statistics().handshake_failures >= 3


def test_an_added_or_removed_key_applies_from_the_next_connection(keys: Keys) -> None:
    publisher = make_publisher(curve=keys.config())
    client = keys.client("late", authorized=False)
    with polled_elsewhere(publisher):
        endpoint = publisher.endpoints[0]
        with Subscriber(endpoint, curve=client) as subscriber:
            with pytest.raises(TimeoutError):
                subscriber.receive(0.3)
            added = keys.authorized / "late.key"
            added.write_bytes((keys.server_public.parent / "late.key").read_bytes())
            assert receive_features(subscriber).camera == "cam1"
        added.unlink()
        with Subscriber(endpoint, curve=client) as subscriber, pytest.raises(TimeoutError):
            subscriber.receive(0.3)


NO_KEYS = [
    "half a k",
    'public-key = "abcd"',
    f'public-key = "{"~" * 40}"',
    f'public-key = "{"0" * 45}"',
    f'public-key = "{"#" * 40}"',  # five of the largest digits exceed four bytes
    "public-key",
]


@pytest.mark.parametrize("text", NO_KEYS)
def test_keys_stay_valid_and_the_error_is_reported_when_the_folder_becomes_unreadable(keys: Keys, text: str) -> None:
    publisher = make_publisher(curve=keys.config())
    client = keys.client("robot", authorized=True)
    with polled_elsewhere(publisher):
        (keys.authorized / "broken.key").write_text(text)
        with Subscriber(publisher.endpoints[0], curve=client) as subscriber:
            assert receive_features(subscriber).camera == "cam1"
        assert "broken.key" in (publisher.statistics().keys_error or "")
        (keys.authorized / "broken.key").unlink()
        with Subscriber(publisher.endpoints[0], curve=client) as subscriber:
            assert receive_features(subscriber).camera == "cam1"
        assert publisher.statistics().keys_error is None


def test_keys_that_cannot_be_read_are_named_and_never_shown(keys: Keys, tmp_path: Path) -> None:
    secret = zmq.auth.load_certificate(keys.server_secret)[1]
    assert secret is not None
    for config, why, field in (
        (CurveConfig(tmp_path / "none.key_secret", keys.authorized), "none.key_secret", "server_secret_key_file"),
        (CurveConfig(keys.server_public, keys.authorized), "holds no secret key", "server_secret_key_file"),
        (CurveConfig(keys.server_secret, tmp_path / "none"), "cannot read the authorized keys", "authorized_keys_dir"),
    ):
        with pytest.raises(PublishError, match=why) as caught:
            make_publisher(curve=config).open()
        assert caught.value.field == f"curve.{field}"
        assert secret.decode() not in str(caught.value)
    for text in NO_KEYS:
        (keys.authorized / "broken.key").write_text(text)
        with make_publisher(curve=keys.config()) as publisher:
            assert "broken.key" in (publisher.keys_error or "")
        (keys.authorized / "broken.key").unlink()
        (tmp_path / "broken.key_secret").write_text(f'public-key = "{"0" * 40}"\n' + text.replace("public", "secret"))
        with pytest.raises(PublishError, match=r"broken\.key_secret"):
            make_publisher(curve=CurveConfig(tmp_path / "broken.key_secret", keys.authorized)).open()


@pytest.mark.parametrize(
    "request_parts",
    [
        [],
        [b"1.0"],
        [b"1.0", b"7", b"d", b"a", b"", b"NULL"],
        [b"1.0", b"7", b"d", b"a", b"", b"PLAIN", b"user", b"password"],
        [b"1.0", b"7", b"d", b"a", b"", b"CURVE", b"K" * 31],
        [b"2.0", b"7", b"d", b"a", b"", b"CURVE", b"K" * 32],
    ],
)
def test_an_unknown_client_is_refused(request_parts: list[bytes]) -> None:
    allowed = frozenset([b"K" * 32])
    assert zap_reply(request_parts, allowed)[2] == b"400"
    assert zap_reply([b"1.0", b"7", b"d", b"a", b"", b"CURVE", b"K" * 32], allowed)[:3] == [b"1.0", b"7", b"200"]


def _writable(path: Path) -> None:
    path.chmod(0o666 if path.is_file() else 0o1777)


def _given_away(path: Path) -> None:
    os.chown(path, 12345, 12345)


UNSAFE = [
    pytest.param(_writable, "chmod go-w", id="writable"),
    pytest.param(
        _given_away,
        "belongs to another user, uid 12345.*chown",
        id="stranger's",
        marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away"),
    ),
]


@pytest.mark.parametrize(("spoil", "advice"), UNSAFE)
@pytest.mark.parametrize("place", ["secret key", "authorized keys"])
def test_keys_that_others_can_change_are_refused_with_what_mends_it(
    keys: Keys, place: str, spoil: Callable[[Path], None], advice: str
) -> None:
    spoil(keys.server_secret if place == "secret key" else keys.authorized)
    with pytest.raises(AccessError, match=advice):
        make_publisher(curve=keys.config()).open()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_secret_key_in_a_folder_of_a_stranger_is_refused(keys: Keys, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" / "below"
    theirs.mkdir(parents=True)
    secret = keys.server_secret.rename(theirs / "server.key_secret")
    for folder in (theirs, theirs.parent):
        os.chown(folder, 12345, 12345)
        with pytest.raises(AccessError, match=f"the folder {folder} belongs to another user"):
            make_publisher(curve=CurveConfig(secret, keys.authorized)).open()
        os.chown(folder, 0, 0)
    theirs.chmod(0o775)
    with pytest.raises(AccessError, match=f"write to the folder {theirs}.*chmod go-w"):
        make_publisher(curve=CurveConfig(secret, keys.authorized)).open()
    theirs.chmod(0o777)
    with pytest.raises(AccessError, match="every user can replace what is in"):
        make_publisher(curve=CurveConfig(secret, keys.authorized)).open()


@pytest.mark.parametrize(("spoil", "advice"), UNSAFE)
def test_one_key_that_others_can_change_is_named_and_left_out(
    keys: Keys, spoil: Callable[[Path], None], advice: str
) -> None:
    keys.make("kept", authorized=True)
    safe = AuthorizedKeys(keys.authorized).current()
    keys.make("spoilt", authorized=True)
    authorized = AuthorizedKeys(keys.authorized)
    assert len(authorized.current()) == 2
    spoil(keys.authorized / "spoilt.key")
    for now in (authorized, AuthorizedKeys(keys.authorized)):
        assert now.current() == safe
        assert re.search(f"{advice}.*spoilt.key.*the other keys apply", now.error or "")


@pytest.mark.parametrize(("spoil", "advice"), UNSAFE)
def test_a_folder_that_becomes_unsafe_adds_no_key(keys: Keys, spoil: Callable[[Path], None], advice: str) -> None:
    keys.make("robot", authorized=True)
    authorized = AuthorizedKeys(keys.authorized)
    before = authorized.current()
    spoil(keys.authorized)
    keys.make("planted", authorized=True)
    assert authorized.current() == before
    assert re.search(f"{advice}.*the keys that were read before stay valid", authorized.error or "")


def test_a_secret_key_that_every_user_may_read_is_a_note(keys: Keys) -> None:
    """`zmq.auth.create_certificates` makes it so."""
    keys.server_secret.chmod(0o644)
    assert f"chmod o-r {keys.server_secret}" in (secret_key_note(keys.server_secret) or "")
    keys.server_secret.chmod(0o640)
    assert secret_key_note(keys.server_secret) is None
    with make_publisher(curve=keys.config()):
        pass


REFUSED = "its key is not among the authorized keys"


def test_a_revoked_key_is_refused_although_another_file_cannot_be_read(keys: Keys) -> None:
    """The file that cannot be read is named, and every other key applies."""
    publisher = make_publisher(curve=keys.config())
    revoked, kept = keys.client("revoked", authorized=True), keys.client("kept", authorized=True)
    with polled_elsewhere(publisher):
        endpoint = publisher.endpoints[0]
        (keys.authorized / "broken.key").write_text("half a k")
        (keys.authorized / "revoked.key").unlink()
        with Subscriber(endpoint, curve=kept) as subscriber:
            assert receive_features(subscriber).camera == "cam1"
        with Subscriber(endpoint, curve=revoked) as subscriber, pytest.raises(TimeoutError, match="refuses"):
            subscriber.receive(0.5)
        error = publisher.statistics().keys_error or ""
        assert "broken.key" in error
        assert "the other keys apply" in error


def _dangle(path: Path) -> None:
    path.symlink_to("nowhere")


def _empty(path: Path) -> None:
    path.write_text("")


@pytest.mark.parametrize("spoil", [Path.mkdir, os.mkfifo, _dangle, _empty], ids=["folder", "fifo", "link", "empty"])
def test_whatever_has_the_name_of_a_key_is_named_and_left_out(keys: Keys, spoil: Callable[[Path], None]) -> None:
    """Reading a FIFO would block the service."""
    kept = keys.client("kept", authorized=True)
    authorized = AuthorizedKeys(keys.authorized)
    before = authorized.current()
    spoil(keys.authorized / "broken.key")
    assert authorized.current() == before
    assert "broken.key" in str(authorized.error)
    (keys.authorized / "kept.key").unlink()
    assert authorized.current() == frozenset()
    assert kept


def test_a_key_that_is_replaced_or_locked_in_place_applies_at_once(keys: Keys) -> None:
    """The folder's own time stays the same."""
    old, new = keys.make("old", authorized=True), keys.make("new")
    authorized = AuthorizedKeys(keys.authorized)
    file = keys.authorized / "old.key"
    for public in (new[0], old[0], new[0]):  # at once: within the clock's resolution
        file.write_bytes(public.read_bytes())
        assert authorized.current() == {decode_key(load_keys(public).public_key)}
    times = file.stat()
    file.write_bytes(old[0].read_bytes())
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as `cp -p` and rsync do
    assert authorized.current() == {decode_key(load_keys(old[0]).public_key)}


def test_a_folder_that_is_switched_by_a_link_applies_at_once(keys: Keys, tmp_path: Path) -> None:
    """As Kubernetes updates a mounted secret."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        public = keys.make(name)[0]
        (tmp_path / name / "robot.key").write_bytes(public.read_bytes())
    (tmp_path / "data").symlink_to("one")
    authorized = AuthorizedKeys(tmp_path / "data")
    first = authorized.current()
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(tmp_path / "data")
    assert authorized.current() != first
    assert len(authorized.current()) == 1


def test_the_previous_keys_stay_valid_while_the_folder_itself_is_gone(keys: Keys) -> None:
    keys.make("robot", authorized=True)
    authorized = AuthorizedKeys(keys.authorized)
    before = authorized.current()
    keys.authorized.rename(keys.authorized.with_name("gone"))
    assert authorized.current() == before
    assert "the keys that were read before stay valid" in str(authorized.error)
    keys.authorized.with_name("gone").rename(keys.authorized)
    assert authorized.current() == before
    assert authorized.error is None


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_refused_key_is_reported_with_its_address_and_beginning(keys: Keys, transport: str, tmp_path: Path) -> None:
    publisher = make_publisher(TCP if transport == "tcp" else f"ipc://{tmp_path}/s", curve=keys.config())
    stranger = keys.client("stranger", authorized=False)
    with publisher, Subscriber(publisher.endpoints[0], curve=stranger):
        poll_until(publisher, "unauthorized", 1)
        start = load_keys(stranger.client_secret_key_file).public_key[:8].decode()
        address = "127.0.0.1" if transport == "tcp" else f"process {os.getpid()}"
        assert publisher.take_refusals() == {Refusal(address, REFUSED, start): 1}
        assert publisher.take_refusals() == {}


def test_a_client_without_keys_and_one_with_another_server_key_are_reported(keys: Keys) -> None:
    publisher = make_publisher(curve=keys.config())
    wrong = CurveKeys(keys.make("robot", authorized=True)[1], keys.make("other")[0])
    reasons: set[str] = set()
    with publisher:
        until = time.monotonic() + scaled(20)
        while len(reasons) < 2:  # whichever side notices first closes the connection, and the other sees only that
            assert time.monotonic() < until, reasons
            with Subscriber(publisher.endpoints[0]), Subscriber(publisher.endpoints[0], curve=wrong):
                poll_until(publisher, "disconnected_total", publisher.statistics().disconnected_total + 1)
            reasons |= {refusal.reason for refusal in publisher.take_refusals()}
    assert reasons == {
        "one side uses CURVE keys, the other does not",
        "it encrypts for another server key than this service's",
    }


def test_a_port_scan_is_no_refusal() -> None:
    with make_publisher() as publisher:
        host, port = publisher.endpoints[0].removeprefix("tcp://").split(":")
        socket.create_connection((host, int(port))).close()
        poll_until(publisher, "disconnected_total", 1)
        assert publisher.take_refusals() == {}


def test_a_bounded_number_of_refusals_is_kept() -> None:
    refusals = Refusals()
    for number in range(10_000):
        refusals.add(Refusal(f"10.0.0.{number}", "reason"))
    counts = refusals.take()
    assert len(counts) <= 65
    assert sum(counts.values()) == 10_000


@pytest.mark.parametrize("with_keys", [False, True])
def test_a_subscriber_is_advised_about_the_keys_that_it_lacks_or_has_too_many_of(keys: Keys, with_keys: bool) -> None:
    client = keys.client("robot", authorized=True)
    publisher = make_publisher(curve=None if with_keys else keys.config())
    advice = (
        "does not encrypt.*connect without them"
        if with_keys
        else "The service encrypts, and this client has no CURVE keys"
    )
    with (
        polled_elsewhere(publisher),
        Subscriber(publisher.endpoints[0], curve=client if with_keys else None) as subscriber,
        pytest.raises(TimeoutError, match=rf"refuses the connection\. .*{advice}"),
    ):
        subscriber.receive(scaled(0.5))


def test_a_refused_subscriber_can_say_so_long_before_it_gives_up(keys: Keys) -> None:
    publisher = make_publisher(curve=keys.config())
    with polled_elsewhere(publisher), Subscriber(publisher.endpoints[0]) as subscriber:
        with pytest.raises(TimeoutError):
            subscriber.receive(scaled(1.0))
        assert "The service encrypts, and this client has no CURVE keys" in str(subscriber.refusal)
    welcome = keys.client("welcome", authorized=True)
    publisher = make_publisher(curve=keys.config())
    with polled_elsewhere(publisher), Subscriber(publisher.endpoints[0], curve=welcome) as subscriber:
        receive_features(subscriber)
        assert subscriber.refusal is None
