"""`retinad cameras`: tries every camera of a config."""

import typer

from ..exit_codes import ExitCode
from .common import DEFAULT_CONFIG, ConfigArgument, HiddenOption, chosen_config, load_service_config


def cameras(config: ConfigArgument = None, config_option: HiddenOption = None) -> None:
    """Open every camera of a config and describe it. The exit code is 66 if any of them delivers no frame."""
    import anyio

    from .probe import probe_cameras

    path = chosen_config(config, config_option) or DEFAULT_CONFIG
    findings = anyio.run(probe_cameras, load_service_config(path).cameras)
    for finding in findings:
        typer.echo(str(finding))
    if not all(finding.is_good for finding in findings):
        raise typer.Exit(ExitCode.NO_INPUT)
