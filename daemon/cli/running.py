"""Finds the running service that a command refers to."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from retinad.pipeline.files.ownership import NotOursError

from ..exit_codes import ExitCode

if TYPE_CHECKING:
    from ..service.control import RunningService


def running_service(config: Path) -> "RunningService":
    """The service that runs with a config file; the command ends with an error if there is none."""
    from ..service.control import find_services

    try:
        services, folders = find_services()
    except NotOursError as error:
        typer.echo(f"retinad: {error}", err=True)
        raise typer.Exit(ExitCode.NO_PERMISSION) from error
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}: run this as the service's user (sudo -u retinad ...)")
    mine = [service for service in services if service.config == Path(os.path.realpath(config))]
    if mine:
        return mine[0]
    where = " or ".join(map(str, folders))
    others = ", ".join(f"process {service.pid} runs with {service.config}" for service in services)
    fail(f"no service in {where} runs with {config}" + (f"; {others}" if others else ""))


def fail(text: str) -> NoReturn:
    """End the command with an error about the service."""
    typer.echo(f"retinad: {text}", err=True)
    raise typer.Exit(ExitCode.UNAVAILABLE)
