"""Access control: only clients with an authorized key are accepted, and broken key files are named."""

from pathlib import Path

import pytest
import zmq
import zmq.auth

from retinad.client import CurveKeys, Subscriber
from retinad.pipeline.config import CurveConfig
from retinad.pipeline.errors import PublishError
from retinad.pipeline.publish.zap import zap_reply

from .rig import Keys, make_publisher, polled_elsewhere, receive_features


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
        with pytest.raises(PublishError, match=r"broken\.key"):
            make_publisher(curve=keys.config()).open()
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
