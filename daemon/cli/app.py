"""The command `retinad`: defines its subcommands, and turns a command line into an exit code.

A command imports what it needs when it runs: a subscriber needs neither torch nor pydantic. The only broad `except` of
the product is here, in `run_command`.
"""

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Annotated

import typer

from ..exit_codes import ExitCode
from .keygen import keygen
from .locate import locate
from .mapping import cloud, trajectory
from .schema import schema
from .state import CommandState
from .subscribe import subscribe
from .switches import Command, Group
from .version import version

_CLIENTS, _ABOUT = (subscribe, trajectory, cloud, locate, keygen), (schema, version)

if sys.version_info >= (3, 11):
    from .bench import bench
    from .cameras import cameras
    from .check import check
    from .convert import convert
    from .default_config import config
    from .extract import extract
    from .reload import reload
    from .renew import renew
    from .run import run

    _SERVICE, _JOBS = (run, check, reload, renew, cameras, config), (extract, convert, bench)
    COMMANDS = (*_SERVICE, *_CLIENTS, *_JOBS, *_ABOUT)
    """All commands, in the order of the help."""
else:
    COMMANDS = (*_CLIENTS, *_ABOUT)

SERVER_COMMANDS = frozenset({"run", "check", "reload", "renew", "cameras", "config", "extract", "convert", "bench"})
"""Commands that need Python 3.11. The commands for subscribers also run on 3.10."""

_SERVER_PARTS = ("anyio", "cv2", "pydantic", "safetensors", "structlog", "torch")
_USAGE_ERROR = 2
"""The exit code that typer returns for a wrong command line."""


def main() -> None:
    """Run this process's command line and exit."""
    code = run_command(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError):  # a stream is None, or broken, if nobody reads it
            stream.flush()
    # Everything is closed. The interpreter's own shutdown would take up to a second with torch loaded, more on a busy
    # machine, wait indefinitely for a thread that is stuck in a library call, and tear others out of native code, which
    # aborts the process.
    os._exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    if (problem := python_problem(arguments, sys.version_info[:2])) is not None:
        typer.echo(f"retinad: {problem}", err=True)
        return ExitCode.UNAVAILABLE
    with ExitStack() as stack:
        state = CommandState(stack)
        try:
            typer.main.get_command(make_app()).main(list(arguments), prog_name="retinad", obj=state)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else ExitCode.OK
            return ExitCode.USAGE if code == _USAGE_ERROR else code
        except Exception as error:  # the top level: anything unforeseen
            return _report(error, state.has_log)
    return ExitCode.OK


def python_problem(arguments: Sequence[str], version: tuple[int, ...]) -> str | None:
    """Why a command cannot run on this version of Python; None if it can."""
    command = next((word for word in arguments if not word.startswith("-")), None)
    if version >= (3, 11) or command not in SERVER_COMMANDS:
        return None
    shown = ".".join(map(str, version))
    return (
        f"{command} needs Python 3.11 or newer, but this is {shown}. "
        "Older versions run only the commands for subscribers, such as `retinad subscribe`"
    )


def make_app() -> typer.Typer:
    """Define the command line."""
    app = typer.Typer(
        name="retinad",
        cls=Group,
        epilog="Exit codes: " + "; ".join(f"{code.value} {code.meaning}" for code in ExitCode) + ".",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,  # its tracebacks show local variables, which may hold secrets
    )
    for command in COMMANDS:
        app.command(cls=Command)(command)
    app.callback()(options)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from ..versions import find_versions

        typer.echo(find_versions()["retinad"])
        raise typer.Exit


def options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version."),
    ] = False,
) -> None:
    """Camera frames in, streaming transformer features out."""


def _report(error: Exception, has_log: bool) -> ExitCode:
    from ..logs.redact import Redactor

    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _SERVER_PARTS:
        typer.echo(
            f"retinad: this command needs the server's packages ({error.name} is missing): "
            "run pip install '.[server]' in a clone of the repository",
            err=True,
        )
        return ExitCode.UNAVAILABLE
    if has_log:
        logging.getLogger("retinad").critical("internal error", exc_info=error)
    else:
        typer.echo(Redactor().redact("".join(traceback.format_exception(error))), err=True, nl=False)
        typer.echo("retinad: internal error, please report the traceback above", err=True)
    return ExitCode.FAULT
