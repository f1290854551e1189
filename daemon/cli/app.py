"""The command `retinad`. Each command imports what it needs when it runs: a subscriber has neither torch nor pydantic.

Exit codes are those of `exit_codes.py`. The product's only broad `except` is here, in `run_command`.
"""

import importlib.resources
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from ..exit_codes import ExitCode
from .jobs import convert, extract, keep_kernels_of, reported_errors

if TYPE_CHECKING:
    from ..config.load import ServiceConfig

_SERVER_PARTS = ("anyio", "cv2", "pydantic", "safetensors", "structlog", "torch")
_USAGE_ERROR = 2
"""What typer exits with when the command line is wrong."""

_DEFAULT_CONFIG = Path("config.toml")

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="The config file.")]


@dataclass(slots=True)
class CommandState:
    """What outlives a command's function.

    Attributes:
        stack: closed at the end; `run` opens its log here, so that it is still open when a crash is reported.
        has_log: whether the log is open.
    """

    stack: ExitStack
    has_log: bool = False


def main() -> None:
    """Run this process's command line and exit."""
    code = run_command(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError):  # it is None, or broken, if nobody is there to read
            stream.flush()
    # All is closed. The interpreter's own end would add up to a second with torch loaded, more on a busy machine, wait
    # for ever for a thread that is stuck in a library's call, and tear others out of native code, which aborts.
    os._exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run a command line; returns its exit code."""
    with ExitStack() as stack:
        state = CommandState(stack)
        try:
            typer.main.get_command(make_app()).main(list(arguments), prog_name="retinad", obj=state)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else ExitCode.OK
            return ExitCode.USAGE if code == _USAGE_ERROR else code
        except Exception as error:  # the top: whatever nobody foresaw
            return _report(error, state.has_log)
    return ExitCode.OK


def _print_version(wanted: bool) -> None:
    if wanted:
        from ..versions import find_versions

        typer.echo(find_versions()["retinad"])
        raise typer.Exit


def make_app() -> typer.Typer:
    """The command line's definition."""
    app = typer.Typer(
        name="retinad",
        help="Camera frames in, streaming transformer features out.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,  # its tracebacks show local variables, and these may hold secrets
    )
    for command in (run, check, cameras, config, subscribe, extract, convert, bench, schema, version):
        app.command()(command)
    app.callback()(options)
    return app


def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Camera frames in, streaming transformer features out."""


def run(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="The config file.", show_default=str(_DEFAULT_CONFIG))
    ] = None,
    config_option: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="The same as an option.")
    ] = None,
) -> None:
    """Run the service until it is told to stop. The log goes to standard error."""
    if config is not None and config_option is not None:
        raise typer.BadParameter("the config file is given twice", param_hint="--config")
    from ..service.run import run_service

    state = context.obj
    assert isinstance(state, CommandState)
    state.has_log = True
    raise typer.Exit(run_service(config or config_option or _DEFAULT_CONFIG, state.stack))


def check(
    config: ConfigArgument = _DEFAULT_CONFIG,
    memory: Annotated[
        bool, typer.Option("--memory", help="Print what it takes of the device, part by part, and whether it fits.")
    ] = False,
    source_size: Annotated[
        str | None, typer.Option(metavar="WIDTHxHEIGHT", help="With --memory: of every camera's pictures.")
    ] = None,
) -> None:
    """Print the config as the service would run it, without secrets, or all that is wrong in the file.

    No source is opened: `retinad cameras` does that.
    """
    from ..config.show import show_config
    from .missing_paths import missing_paths

    if source_size is not None and not memory:
        raise typer.BadParameter("it belongs to --memory", param_hint="--source-size")
    loaded = _load(config)
    for line in missing_paths(loaded.cameras):
        typer.echo(f"note: {line}", err=True)
    if memory:
        from .memory import device_bytes, memory_report
        from .sizes import ANY, parse_size

        try:
            size = None if source_size is None else parse_size(source_size, ANY)
            typer.echo(memory_report(loaded, size, device_bytes(loaded.model.device)))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--source-size") from error
    else:
        typer.echo(show_config(loaded), nl=False)


def cameras(config: ConfigArgument = _DEFAULT_CONFIG) -> None:
    """Open every camera of a config and say what came; exit 66 if one gives no frame."""
    import anyio

    from .probe import probe_cameras

    findings = anyio.run(probe_cameras, _load(config).cameras)
    for finding in findings:
        typer.echo(str(finding))
    if not all(finding.is_good for finding in findings):
        raise typer.Exit(ExitCode.NO_INPUT)


def config() -> None:
    """Print the default config, which documents every key: `retinad config > config.toml` makes one to start from."""
    typer.echo(importlib.resources.files("retinad.daemon").joinpath("config.toml").read_text("utf-8"), nl=False)


def subscribe(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="tcp://HOST:PORT or ipc:///PATH.")],
    camera: Annotated[list[str] | None, typer.Option(metavar="NAME", help="This camera only; repeatable.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="features, status, end or hello; repeatable. By default features and end."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each record's tensors to a .npz file.")
    ] = None,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop after so many messages.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="Exit with 69 after so long without a message."),
    ] = None,
    latest: Annotated[bool, typer.Option("--latest", help="Skip to the newest record when behind.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    client_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="This client's secret key, for a service that encrypts.")
    ] = None,
    server_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The public key of a service that encrypts.")
    ] = None,
) -> None:
    """Print one line for each message that a service publishes.

    Of features: the camera, the record's number, the picture's size, how old it was when sent, the tensors, flags, and
    what is missing before it.
    """
    from retinad.client import CurveKeys

    from .subscribe import subscribe as run_subscriber

    if (client_key is None) != (server_key is None):
        raise typer.BadParameter("--client-key and --server-key belong together")
    code = run_subscriber(
        endpoint=endpoint,
        cameras=tuple(camera or ()),
        kinds=tuple(kind or ()),
        save=save,
        count=count,
        timeout_s=timeout,
        latest=latest,
        as_json=as_json,
        curve=CurveKeys(client_key, server_key) if client_key and server_key else None,
    )
    raise typer.Exit(code)


def bench(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG",
            help="Its model counts, and its first camera's stream, resize and queue; not its cameras' number or sizes.",
        ),
    ] = None,
    cameras: Annotated[
        int, typer.Option(metavar="N", min=1, max=1024, help="Synthetic cameras, in place of the config's.")
    ] = 1,
    steps: Annotated[int, typer.Option(metavar="N", min=2, help="Steps to measure.")] = 200,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="tiny or lingbot-map, in place of the config's.")
    ] = None,
    size: Annotated[str, typer.Option(metavar="WxH", help="Size of the cameras' pictures.")] = "1920x1080",
    fps: Annotated[
        float | None,
        typer.Option(metavar="FPS", min=0.01, max=1000, help="Of a camera; by default 30, or what the model can take."),
    ] = None,
    window_full: Annotated[
        bool, typer.Option("--window-full/--no-window-full", help="Fill the streams' windows before measuring.")
    ] = True,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all of it here.")] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Print ratios to an earlier run's --json file.")
    ] = None,
) -> None:
    """Measure the model alone, and the way from a synthetic camera to a subscriber."""
    keep_kernels_of(context)
    from ..bench.plan import BenchPlan
    from ..bench.run import bench as run
    from .sizes import SYNTHETIC, parse_size

    try:
        pictures = parse_size(size, SYNTHETIC)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--size") from error
    default = importlib.resources.files("retinad.daemon").joinpath("config.toml")
    with importlib.resources.as_file(default) as default_path:
        loaded = _load(config or default_path, {} if preset is None else {"RETINAD_MODEL__PRESET": preset})
    raise typer.Exit(run(BenchPlan(loaded, cameras, pictures, steps, window_full, fps), json_file, compare))


def schema() -> None:
    """Print the JSON Schema of the messages' headers."""
    from .schema import message_schema

    typer.echo(message_schema())


def version() -> None:
    """Print the versions of retinad and of what it runs on."""
    from ..versions import find_versions

    for name, text in find_versions().items():
        typer.echo(f"{name} {text}")


def _report(error: Exception, has_log: bool) -> ExitCode:
    from ..logs.redact import Redactor

    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _SERVER_PARTS:
        typer.echo(
            f"retinad: this command needs the server's packages ({error.name} is missing): "
            "in a clone of the repository, pip install '.[server]'",
            err=True,
        )
        return ExitCode.UNAVAILABLE
    if has_log:
        logging.getLogger("retinad").critical("internal error", exc_info=error)
    else:
        typer.echo(Redactor().redact("".join(traceback.format_exception(error))), err=True, nl=False)
        typer.echo("retinad: internal error, please report the traceback above", err=True)
    return ExitCode.FAULT


def _load(path: Path, overrides: Mapping[str, str] = MappingProxyType({})) -> "ServiceConfig":
    from ..config.load import load_config

    with reported_errors():
        return load_config(path, os.environ | dict(overrides))
