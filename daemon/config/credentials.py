"""Reads systemd credentials: a value `credential:NAME` in the config names a file that systemd passes to the unit."""

import os
from collections.abc import Mapping
from pathlib import Path

CREDENTIAL = "credential:"
"""Prefix of a config value that names a credential."""


def read_credential(text: str, environment: Mapping[str, str]) -> str:
    """The contents of the credential that `credential:NAME` names.

    Raises:
        ValueError: the credential cannot be read; the message says why and what to do.
    """
    path = find_credential(text, environment)
    try:
        value = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ValueError(f"the credential cannot be read: {reason}") from None
    if not value or not value.isprintable():
        raise ValueError("the credential must hold one line of text")
    return value


def find_credential(text: str, environment: Mapping[str, str]) -> Path:
    """The file of the credential that `credential:NAME` names.

    Raises:
        ValueError: there is no such credential; the message says why and what to do.
    """
    name = text.removeprefix(CREDENTIAL)
    if not name or "/" in name or name.startswith(".") or not name.isprintable():
        raise ValueError("expected credential:NAME, where NAME is a plain file name")
    directory = environment.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise ValueError(f"no credentials were passed: the unit needs LoadCredential={name}:/path/to/the/file")
    path = Path(directory, name)
    if not os.path.isfile(path):  # Path.is_file raises if a folder may not be entered, or a name is too long
        raise ValueError(f"there is no credential of this name: the unit needs LoadCredential={name}:/path/to/the/file")
    return path
