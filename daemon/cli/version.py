"""`retinad version`: the versions of retinad and its libraries."""

import typer

from ..versions import find_versions


def version() -> None:
    """Print the versions of retinad and of the libraries that it runs on."""
    for name, text in find_versions().items():
        typer.echo(f"{name} {text}")
