"""`retinad renew`: makes streams of a running service begin new epochs."""

import re
from pathlib import Path
from typing import Annotated

import typer

from .common import DEFAULT_CONFIG, chosen_config, reported_errors
from .running import fail, running_service

_NO_NAME = re.compile(r"[./]")
"""What no camera's name has, but the path of a config: `config.toml` may be given among the cameras."""


def renew(
    cameras: Annotated[
        list[str] | None, typer.Argument(metavar="[CAMERA]...", help="Names of cameras. Without names: all cameras.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            readable=False,
            help="The config of the running service.",
            show_default=str(DEFAULT_CONFIG),
        ),
    ] = None,
) -> None:
    """Make streams of the running service begin new epochs, for cameras that started in the dark, covered or moving."""
    from ..config.load import load_config

    names = cameras or []
    files = [Path(name) for name in names if _NO_NAME.search(name)]
    path = chosen_config(files[0] if files else None, config) or DEFAULT_CONFIG
    service, names = running_service(path), [name for name in names if Path(name) not in files[:1]]
    if names:
        with reported_errors():
            current = load_config(service.current, service.environment)
        known, disabled = ([camera.name for camera in group] for group in (current.cameras, current.disabled))
        if unknown := [name for name in names if name not in (*known, *disabled)]:
            raise typer.BadParameter(f"no camera is named {', '.join(unknown)}: expected {', '.join(known)}")
        if idle := [name for name in names if name in disabled]:
            raise typer.BadParameter(f"{', '.join(idle)} does not run: its config has enabled = false")
    try:
        service.renew(names)
    except TimeoutError:
        fail(f"the service (process {service.pid}) did not take the request in time")
