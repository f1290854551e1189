"""Reads and writes CURVE key files as `zmq.auth.create_certificates` does, for subscribers and for the service.

Needs no zmq. Errors name the file and never quote a key.
"""

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

_ALPHABET = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""The digits of the Z85 encoding (rfc.zeromq.org/spec/32), in which five digits encode four bytes."""
_KEY_DIGITS = 40
_TEXT = """# The {} key of a CURVE key pair.

metadata
curve
    public-key = "{}"
"""


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


def write_keys(folder: Path, name: str, public: bytes, secret: bytes) -> tuple[Path, Path]:
    """Write the files of a key pair: `NAME.key` for everyone, and `NAME.key_secret` for its owner alone.

    The modes do not depend on the umask: a service must be able to read the public keys of its subscribers.

    Returns:
        The path of the public file, and that of the secret file.

    Raises:
        FileExistsError: one of the two files exists already; nothing is written.
        OSError: the files cannot be written.
    """
    texts = {
        folder / f"{name}.key_secret": (
            0o600,
            _TEXT.format("secret", public.decode()) + f'    secret-key = "{secret.decode()}"\n',
        ),
        folder / f"{name}.key": (0o644, _TEXT.format("public", public.decode())),
    }
    for path in texts:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "the file exists, and may be in use", str(path))
    for path, (mode, text) in texts.items():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            os.fchmod(descriptor, mode)
    secret_path, public_path = texts
    return public_path, secret_path


def decode_key(key: bytes) -> bytes | None:
    """Decode a Z85 key to its 32 bytes. Returns None if the text is not a CURVE key."""
    if len(key) != _KEY_DIGITS or not set(key) <= set(_ALPHABET):
        return None
    try:
        return b"".join(_number(key[start : start + 5]).to_bytes(4, "big") for start in range(0, _KEY_DIGITS, 5))
    except OverflowError:  # five of the largest digits exceed four bytes
        return None


def encode_key(key: bytes) -> bytes:
    """Encode a key of 32 bytes in Z85."""
    digits = bytearray()
    for start in range(0, len(key), 4):
        number = int.from_bytes(key[start : start + 4], "big")
        digits += bytes(_ALPHABET[number // len(_ALPHABET) ** power % len(_ALPHABET)] for power in (4, 3, 2, 1, 0))
    return bytes(digits)


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
