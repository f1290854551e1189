"""The service's own secret key: who else could change or read its file."""

from pathlib import Path

from retinad.client.curve_keys import KeyFileError, load_keys

from ..errors import AccessError, PublishError
from ..files.ownership import NotOursError, check_unchangeable, others_can_read

_FIELD = "curve.server_secret_key_file"


def load_secret_key(path: Path) -> bytes:
    """Read the secret key.

    Raises:
        AccessError: the file or a folder on the way to it belongs to another user, or others can write to it.
        PublishError: the file cannot be read, or holds no secret key.
    """
    try:
        check_unchangeable(path)
        return load_keys(path).secret_key
    except NotOursError as exc:
        raise AccessError(f"the secret key is not safe: {exc}", _FIELD) from exc
    except KeyFileError as exc:
        raise PublishError(str(exc), _FIELD) from exc
    except OSError as exc:
        raise PublishError(f"cannot read the CURVE key in {path}: {exc.strerror}", _FIELD) from exc


def secret_key_note(path: Path) -> str | None:
    """A warning if every user may read the secret key; None if not.

    This is no error: `zmq.auth.create_certificates` makes such files, containers mount secrets like that, and whoever
    read the key has it already.
    """
    try:
        reason = others_can_read(path)
    except OSError:  # it is reported where the key is read
        return None
    return None if reason is None else f"the secret key is not secret: {reason}"
