"""Reads CURVE key files as `zmq.auth.create_certificates` writes them, for subscribers and for the service.

Needs no zmq. Errors name the file and never quote a key.
"""

from dataclasses import dataclass, field
from pathlib import Path

_ALPHABET = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""The digits of the Z85 encoding (rfc.zeromq.org/spec/32), in which five digits encode four bytes."""
_KEY_DIGITS = 40


class KeyFileError(ValueError):
    """A key file cannot be read, or lacks a valid key; the message says which file and why."""


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The keys of one file, encoded in Z85. Each key is checked only when it is used.

    Attributes:
        path: path of the file.
    """

    path: Path
    _public: bytes
    _secret: bytes | None = field(repr=False)

    @property
    def public_key(self) -> bytes:
        """The public key.

        Raises:
            KeyFileError: the public key is not a CURVE key.
        """
        return self._checked(self._public)

    @property
    def secret_key(self) -> bytes:
        """The secret key.

        Raises:
            KeyFileError: the file has no secret key, or the secret key is not a CURVE key.
        """
        if self._secret is None:
            raise KeyFileError(f"{self.path} holds no secret key")
        return self._checked(self._secret)

    def _checked(self, key: bytes) -> bytes:
        if decode_key(key) is None:
            raise KeyFileError(f"the key in {self.path} is not a CURVE key (expected {_KEY_DIGITS} Z85 characters)")
        return key


def load_keys(path: Path) -> KeyFile:
    """Read a key file.

    Raises:
        KeyFileError: the file cannot be read, or is not a key file.
    """
    try:
        lines = [line.strip() for line in path.read_bytes().splitlines()]
    except OSError as exc:
        raise KeyFileError(f"cannot read the CURVE key in {path}: {exc.strerror}") from exc
    public, secret = (_find(lines, name, path) for name in (b"public-key", b"secret-key"))
    if public is None:
        raise KeyFileError(f"cannot read the CURVE key in {path}: the file has no public key")
    return KeyFile(path, public, secret)


def decode_key(key: bytes) -> bytes | None:
    """Decode a Z85 key to its 32 bytes. Returns None if the text is not a CURVE key."""
    if len(key) != _KEY_DIGITS or not set(key) <= set(_ALPHABET):
        return None
    try:
        return b"".join(_number(key[start : start + 5]).to_bytes(4, "big") for start in range(0, _KEY_DIGITS, 5))
    except OverflowError:  # five of the largest digits exceed four bytes
        return None


def _number(digits: bytes) -> int:
    number = 0
    for digit in digits:
        number = number * len(_ALPHABET) + _ALPHABET.index(digit)
    return number


def _find(lines: list[bytes], name: bytes, path: Path) -> bytes | None:
    for line in lines:
        if line.startswith(name):
            _, equals, value = line.partition(b"=")
            if not equals:
                raise KeyFileError(f"cannot read the CURVE key in {path}: a line has no `=`")
            return value.strip(b" \t'\"")
    return None
