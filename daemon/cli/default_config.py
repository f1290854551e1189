"""`retinad config`: the default config file, which is the reference of all keys."""

import importlib.resources

import typer


def config() -> None:
    """Print the default config, which documents every key. To start from it: `retinad config > config.toml`."""
    typer.echo(importlib.resources.files("retinad.daemon").joinpath("config.toml").read_text("utf-8"), nl=False)
