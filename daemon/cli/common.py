"""Code that several commands share: options, loading a config, and turning expected errors into exit codes."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from retinad.pipeline.model.presets import PRESETS

from ..exit_codes import ExitCode, JobError
from .state import CommandState

if TYPE_CHECKING:
    from ..config.service_config import JobConfig, ServiceConfig

DEFAULT_CONFIG = Path("config.toml")
PRESET_NAMES = " or ".join(PRESETS)

# Every command takes its config as an argument and as an option; its help shows one of the two (see `chosen_config`).
ConfigArgument = Annotated[
    Path | None,
    typer.Argument(metavar="CONFIG", readable=False, help="The config file.", show_default=str(DEFAULT_CONFIG)),
]
HiddenArgument = Annotated[Path | None, typer.Argument(metavar="CONFIG", readable=False, hidden=True)]
HiddenOption = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", readable=False, hidden=True)]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        readable=False,
        help="A service's config; only \\[model] and \\[stream] are used.",
    ),
]
PresetOption = Annotated[str | None, typer.Option(metavar="NAME", help=f"Overrides model.preset: {PRESET_NAMES}.")]


def state_of(context: typer.Context) -> CommandState:
    """The state of the running command."""
    assert isinstance(context.obj, CommandState)
    return context.obj


def chosen_config(argument: Path | None, option: Path | None) -> Path | None:
    """The config file that a command line names as its argument, as its option or as both; None if it names none.

    Raises:
        typer.BadParameter: it names two different files.
    """
    if argument is not None and option is not None and os.path.realpath(argument) != os.path.realpath(option):
        reason = f"the config file is given twice, as {option} and as {argument}"
        raise typer.BadParameter(reason, param_hint="--config")
    return argument or option


def load_service_config(
    path: Path, overrides: Mapping[str, str] = MappingProxyType({}), *, for_card: bool = False
) -> "ServiceConfig":
    """Load a service's config; an error ends the command. Entries of `overrides` replace environment variables."""
    from ..config.load import load_config

    with reported_errors():
        return load_config(path, os.environ | dict(overrides), for_card=for_card)


def load_job(path: Path | None, options: Sequence[tuple[str, str, object]]) -> "JobConfig":
    """Load the config of a job.

    Args:
        path: the config file, or None for the defaults.
        options: for each option its name, the key of `[model]` that it sets, and its value (None if it was not given).
    """
    from ..config.job import Override, load_job_config

    return load_job_config(
        path, [Override(name, "model", key, value) for name, key, value in options if value is not None]
    )


def keep_kernels_of(context: typer.Context) -> None:
    """Keep the kernels that a command compiles in the service's cache. Prints problems on standard error."""
    from ..config.directories import DirectoryError
    from ..kernel_cache import keep_kernels

    try:
        cache = keep_kernels(state_of(context).stack)
    except DirectoryError as error:
        typer.echo(f"retinad: {error}", err=True)
        raise typer.Exit(error.code) from error
    if cache.is_foreign and cache.folder is None:
        typer.echo(f"retinad: {cache.problem}", err=True)
        raise typer.Exit(ExitCode.NO_PERMISSION)
    if cache.problem is not None:
        typer.echo(f"retinad: compiled kernels are not kept: {cache.problem}", err=True)
    if cache.removed:
        typer.echo(f"retinad: removed {cache.removed} damaged compiled kernels", err=True)


@contextmanager
def reported_errors() -> Iterator[None]:
    """End the command with a message if the config, the model or the device has an error that the user can fix."""
    from retinad.pipeline.errors import AccessError, DeviceError, ModelError, PublishError, SettingError

    from ..config.keys import error_text
    from ..config.load import ConfigError

    try:
        yield
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.CONFIG) from error
    except SettingError as error:
        typer.echo(f"retinad: {error}", err=True)
        raise typer.Exit(ExitCode.CONFIG) from error
    except DeviceError as error:
        typer.echo(f"retinad: the device failed: {error}", err=True)
        raise typer.Exit(ExitCode.FAULT) from error
    except (ModelError, PublishError) as error:
        typer.echo(f"retinad: {error_text(error)}", err=True)
        code = ExitCode.NO_PERMISSION if isinstance(error, AccessError) else ExitCode.UNAVAILABLE
        raise typer.Exit(code) from error


@contextmanager
def reported_job_errors() -> Iterator[None]:
    """Like `reported_errors`, but also report errors of a job, and Ctrl-C before the job handles signals."""
    try:
        with reported_errors():
            yield
    except KeyboardInterrupt:  # no signal handler was installed yet, so nothing has been written
        typer.echo("retinad: stopped; nothing was written", err=True)
        raise typer.Exit(ExitCode.INCOMPLETE) from None
    except JobError as error:
        typer.echo(f"retinad: {error}", err=True)
        raise typer.Exit(error.code) from error


def one_of(option: str, text: str, choices: Sequence[str]) -> str:
    """The value of an option that takes one of several words."""
    if text not in choices:
        raise typer.BadParameter(f"expected {' or '.join(choices)}, got {text!r}", param_hint=option)
    return text


def try_output(path: Path) -> None:
    """Find out whether a job's output can be written, before the job begins.

    Raises:
        JobError: the output cannot be written (exit code `CANNOT_CREATE`).
    """
    from retinad.pipeline.files.atomic import try_writing

    try:
        try_writing(path)
    except OSError as error:
        raise JobError(ExitCode.CANNOT_CREATE, f"{path} cannot be written: {error.strerror}") from error
