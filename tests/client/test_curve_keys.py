"""Key files are read as libzmq's own tools write them, and anything else is named without being quoted."""

import re
from pathlib import Path

import pytest
import zmq
import zmq.auth
from zmq.utils import z85

from retinad.client.curve_keys import KeyFileError, decode_key, encode_key, load_keys

KEY = "0" * 40


def test_files_written_by_zmq_are_read(tmp_path: Path) -> None:
    for path in map(Path, zmq.auth.create_certificates(tmp_path, "robot", metadata={"public-use": "yes"})):
        public, secret = zmq.auth.load_certificate(path)
        keys = load_keys(path)
        assert keys.public_key == public
        if secret is not None:
            assert keys.secret_key == secret
            assert secret.decode() not in repr(keys)
        else:
            with pytest.raises(KeyFileError, match="holds no secret key"):
                _ = keys.secret_key


def test_keys_are_decoded_as_zmq_decodes_them() -> None:
    for _ in range(20):
        public, secret = zmq.curve_keypair()
        assert decode_key(public) == z85.decode(public)
        assert decode_key(secret) == z85.decode(secret)


@pytest.mark.parametrize("key", [b"", b"abcd", b"~" * 40, b"0" * 45, b"#" * 40, b"\xff" * 40])
def test_anything_else_is_not_a_key(key: bytes) -> None:
    """Five of the largest digits exceed four bytes."""
    assert decode_key(key) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no public key"),
        ("public-key", "a line has no `=`"),
        (f'secret-key = "{KEY}"', "has no public key"),
        ('public-key = "s3cret"', "is not a CURVE key (expected 40 Z85 characters)"),
    ],
)
def test_a_broken_file_is_named_and_not_quoted(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "broken.key"
    path.write_text(text)
    with pytest.raises(KeyFileError, match=re.escape(reason)) as caught:
        _ = load_keys(path).public_key
    assert str(path) in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"cannot read the CURVE key in .*none\.key: No such file or directory"):
        load_keys(tmp_path / "none.key")


def test_keys_are_encoded_as_zmq_encodes_them() -> None:
    for _ in range(20):
        public, _ = zmq.curve_keypair()
        assert encode_key(z85.decode(public)) == public
    assert encode_key(b"\xff" * 32) == z85.encode(b"\xff" * 32)
