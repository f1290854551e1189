"""`retinad renew`: makes streams of a running service begin new epochs."""

from pathlib import Path
from typing import Annotated

import typer

from .common import DEFAULT_CONFIG, reported_errors
from .running import fail, running_service


def renew(
    cameras: Annotated[
        list[str] | None, typer.Argument(metavar="[CAMERA]...", help="Names of cameras. Without names: all cameras.")
    ] = None,
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", readable=False, help="The config of the running service.")
    ] = DEFAULT_CONFIG,
) -> None:
    """Make streams of the running service begin new epochs, for cameras that started in the dark, covered or moving."""
    from ..config.load import load_config

    service, names = running_service(config), cameras or []
    with reported_errors():
        known = [camera.name for camera in load_config(service.current, service.environment).cameras] if names else []
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"no camera is named {', '.join(unknown)}: expected {', '.join(known)}")
    try:
        service.renew(names)
    except TimeoutError:
        fail(f"the service (process {service.pid}) did not take the request in time")
