"""`retinad run`: runs the service until it is stopped."""

import typer

from .common import DEFAULT_CONFIG, ConfigArgument, HiddenOption, chosen_config, state_of


def run(
    context: typer.Context,
    config: ConfigArgument = None,
    config_option: HiddenOption = None,
) -> None:
    """Run the service until it is stopped. The log goes to standard error."""
    path = chosen_config(config, config_option) or DEFAULT_CONFIG
    from ..service.run import run_service

    state = state_of(context)
    state.has_log = True
    raise typer.Exit(run_service(path, state.stack))
