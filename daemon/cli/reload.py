"""`retinad reload`: makes a running service read its config again, or prints what that would change."""

import os
from typing import Annotated

import typer

from .common import DEFAULT_CONFIG, ConfigArgument, HiddenOption, chosen_config, reported_errors
from .running import running_service


def reload(
    config: ConfigArgument = None,
    config_option: HiddenOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would change, and which cameras would lose their memory.")
    ] = False,
) -> None:
    """Make a running service read its config again. Prints what changes; an invalid config changes nothing."""
    from ..config.load import load_config
    from ..service.reload_plan import applicable, plan_reload

    service = running_service(chosen_config(config, config_option) or DEFAULT_CONFIG)
    os.chdir(service.working_folder)
    with reported_errors():
        new = load_config(service.config, service.environment)
        started = load_config(service.started, service.environment)
        running = applicable(started, load_config(service.current, service.environment))
    for line in list(plan_reload(running, new).lines()) or ["nothing changes"]:
        typer.echo(line)
    if not dry_run:
        service.reload()
