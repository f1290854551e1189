"""The folder of public keys whose owners may subscribe."""

from pathlib import Path

from retinad.client.curve_keys import KeyFileError, decode_key, load_keys

from ..errors import PublishError

_FIELD = "curve.authorized_keys_dir"


class AuthorizedKeys:
    """The public keys in a folder, read again when a file is added or removed.

    A folder that cannot be read is an error at the start only. Later the previous keys stay valid, and `error` says
    why.

    Args:
        folder: folder of `*.key` files.

    Attributes:
        error: why the folder could not be read at the last attempt, or None.

    Raises:
        PublishError: the folder or a key cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.error: str | None = None
        self._folder = folder
        self._read_at_ns = self._changed_at_ns()
        self._keys = self._read()

    def current(self) -> frozenset[bytes]:
        """The public keys that are authorized now, 32 bytes each."""
        try:
            changed_at_ns = self._changed_at_ns()
            if changed_at_ns != self._read_at_ns:
                self._keys = self._read()
                self._read_at_ns = changed_at_ns
            self.error = None
        except PublishError as exc:
            self.error = str(exc)
        return self._keys

    def _changed_at_ns(self) -> int:
        try:
            return self._folder.stat().st_mtime_ns
        except OSError as exc:
            raise PublishError(f"cannot read the authorized keys in {self._folder}: {exc.strerror}", _FIELD) from exc

    def _read(self) -> frozenset[bytes]:
        try:
            keys = [decode_key(load_keys(file).public_key) for file in sorted(self._folder.glob("*.key"))]
        except KeyFileError as exc:
            raise PublishError(str(exc), _FIELD) from exc
        return frozenset(key for key in keys if key is not None)
