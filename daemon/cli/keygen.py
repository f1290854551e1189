"""`retinad keygen`: makes key pairs for encryption. Needs the base install only."""

import re
from pathlib import Path
from typing import Annotated

import typer

from ..exit_codes import ExitCode

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


def keygen(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Names of the key pairs: one for the service, one per subscriber."),
    ],
    folder: Annotated[
        Path,
        typer.Option(
            "--dir", metavar="DIR", readable=False, help="The folder for the files; created if it is missing."
        ),
    ] = Path("."),
) -> None:
    """Make a CURVE key pair for each name: NAME.key is public, NAME.key_secret stays with its owner.

    The service needs its own secret key and the public keys of its subscribers. A subscriber needs its own secret key
    and the service's public key. Existing files are never replaced.
    """
    from retinad.client.connection import new_key_pair
    from retinad.client.curve_keys import write_keys

    for name in names:
        if not _NAME.fullmatch(name):
            reason = f"expected letters, digits, `.`, `_` and `-`, got {name!r}"
            raise typer.BadParameter(reason, param_hint="NAME")
    for name in names:
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            public, secret = write_keys(folder, name, *new_key_pair())
        except OSError as error:
            typer.echo(f"retinad: the keys of {name} cannot be written: {error.filename}: {error.strerror}", err=True)
            raise typer.Exit(ExitCode.CANNOT_CREATE) from error
        typer.echo(f"{public} (public)  {secret} (secret)")
