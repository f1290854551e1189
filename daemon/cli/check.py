"""`retinad check`: prints a config with all its defaults, or what is wrong with it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.directories import writing_problem
from .common import DEFAULT_CONFIG, ConfigArgument, load_service_config

if TYPE_CHECKING:
    from ..config.service_config import ServiceConfig


def check(
    config: ConfigArgument = DEFAULT_CONFIG,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Print the device memory that each part takes, and whether the total fits."),
    ] = False,
    source_size: Annotated[
        str | None, typer.Option(metavar="WIDTHxHEIGHT", help="With --memory: the size of every camera's frames.")
    ] = None,
) -> None:
    """Print the config with all defaults and without secrets, or everything that is wrong with it.

    No source is opened: `retinad cameras` does that.
    """
    from ..config.show import show_config
    from .missing_paths import missing_paths

    if source_size is not None and not memory:
        raise typer.BadParameter("needs --memory", param_hint="--source-size")
    loaded = load_service_config(config)
    for line in (*loaded.notes, *_keeping_notes(loaded), *missing_paths(loaded.cameras)):
        typer.echo(f"note: {line}", err=True)
    if not memory:
        typer.echo(show_config(loaded), nl=False)
        return
    from retinad.pipeline.engine.memory_estimate import device_bytes

    from .memory import memory_report
    from .sizes import ANY, parse_size

    try:
        size = None if source_size is None else parse_size(source_size, ANY)
        typer.echo(memory_report(loaded, size, device_bytes(loaded.model.device)))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--source-size") from error


def _keeping_notes(config: "ServiceConfig") -> Iterator[str]:
    folder = config.states_dir
    if folder is not None and (problem := writing_problem(folder)) is not None:
        yield f"the streams' memories will not be kept over a restart: {problem}"
