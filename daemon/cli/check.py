"""`retinad check`: prints a config with all its defaults, or what is wrong with it."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.directories import writing_problem
from ..exit_codes import ExitCode
from .common import DEFAULT_CONFIG, ConfigArgument, HiddenOption, chosen_config, load_service_config, reported_errors

if TYPE_CHECKING:
    from ..config.service_config import ServiceConfig


def check(
    config: ConfigArgument = None,
    config_option: HiddenOption = None,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Print the device memory that each part takes, and whether the total fits."),
    ] = False,
    source_size: Annotated[
        str | None, typer.Option(metavar="WIDTHxHEIGHT", help="With --memory: the size of every camera's frames.")
    ] = None,
    card: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="With --memory: compute for a GPU of this size (8GB), here or not."),
    ] = None,
) -> None:
    """Print the config with all defaults and without secrets, or everything that is wrong with it.

    No source is opened: `retinad cameras` does that.
    """
    from ..config.show import show_config
    from ..service.access import access_refusals
    from .missing_paths import missing_paths

    if source_size is not None and not memory:
        raise typer.BadParameter("needs --memory", param_hint="--source-size")
    card_bytes = _card_bytes(card, memory)
    loaded = load_service_config(chosen_config(config, config_option) or DEFAULT_CONFIG, for_card=card is not None)
    refusals = list(access_refusals(loaded))
    keeping_notes = () if refusals else _keeping_notes(loaded)
    for line in (*loaded.notes, *keeping_notes, *missing_paths(loaded.cameras)):
        typer.echo(f"note: {line}", err=True)
    if refusals:
        for _, reason in refusals:
            typer.echo(f"retinad: {reason}", err=True)
        if os.getuid() == 0 and any(code is ExitCode.NO_PERMISSION for code, _ in refusals):
            typer.echo(
                "note: checked for root; if the service runs as another user: sudo -u USER retinad check", err=True
            )
        raise typer.Exit(refusals[0][0])
    from retinad.pipeline.model.checkpoint import check_weights  # torch: after all plain mistakes

    with reported_errors():
        check_weights(loaded.model)
    if not memory:
        typer.echo(show_config(loaded), nl=False)
        return
    from retinad.pipeline.engine.memory_estimate import device_bytes

    from .memory import memory_report
    from .sizes import ANY, parse_size

    try:
        size = None if source_size is None else parse_size(source_size, ANY)
        typer.echo(memory_report(loaded, size, card_bytes or device_bytes(loaded.model.device), card=card is not None))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--source-size") from error


def _card_bytes(card: str | None, memory: bool) -> int | None:
    from .sizes import parse_card

    if card is None:
        return None
    if not memory:
        raise typer.BadParameter("needs --memory", param_hint="--card")
    try:
        return parse_card(card)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--card") from error


def _keeping_notes(config: "ServiceConfig") -> Iterator[str]:
    folder = config.states_dir
    if folder is not None and (problem := writing_problem(folder)) is not None:
        yield f"the streams' memories will not be kept over a restart: {problem}"
