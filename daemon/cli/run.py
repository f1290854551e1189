"""`retinad run`: runs the service until it is stopped."""

from pathlib import Path
from typing import Annotated

import typer

from .common import DEFAULT_CONFIG, state_of


def run(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", readable=False, help="The config file.", show_default=str(DEFAULT_CONFIG)),
    ] = None,
    config_option: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", readable=False, help="The config file, as an option."),
    ] = None,
) -> None:
    """Run the service until it is stopped. The log goes to standard error."""
    if config is not None and config_option is not None:
        raise typer.BadParameter(
            "the config file is given twice, as an argument and as an option: keep one", param_hint="--config"
        )
    from ..service.run import run_service

    state = state_of(context)
    state.has_log = True
    raise typer.Exit(run_service(config or config_option or DEFAULT_CONFIG, state.stack))
