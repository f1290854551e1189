"""The commands that do one job and end: their options, and how their errors become exit codes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retinad.pipeline.sources.registry import KINDS, describe_kinds

from ..exit_codes import ExitCode, JobError

if TYPE_CHECKING:
    from ..config.job import JobConfig

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Of the service; its \\[model] and \\[stream] are used."),
]
_RECORDING = f"A recording: {describe_kinds(tuple(kind for kind in KINDS if kind.ends))}."
_NOWHERE = (
    ("--device", "device", "cpu"),
    ("--device", "attention", "auto"),
    ("--device", "execution", "auto"),
    ("--device", "memory_dtype", "auto"),
)
"""In place of where and how the config's model runs, for a command that runs none."""

Preset = Annotated[str | None, typer.Option(metavar="NAME", help="In place of model.preset.")]


def keep_kernels_of(context: typer.Context) -> None:
    """Let a command keep compiled kernels where the service does; what is wrong with that goes to standard error."""
    from ..kernel_cache import keep_kernels

    cache = keep_kernels(context.obj.stack)
    if cache.problem is not None:
        typer.echo(f"retinad: compiled kernels are not kept: {cache.problem}", err=True)
    if cache.removed:
        typer.echo(f"retinad: {cache.removed} compiled kernels were damaged and are removed", err=True)


@contextmanager
def reported_errors() -> Iterator[None]:
    """Errors of a config, a model or a device, which a person can do something about: a line and an exit code."""
    from retinad.pipeline.errors import DeviceError, ModelError

    from ..config.load import ConfigError

    try:
        yield
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.CONFIG) from error
    except DeviceError as error:
        typer.echo(f"retinad: the device failed: {error}", err=True)
        raise typer.Exit(ExitCode.FAULT) from error
    except ModelError as error:
        typer.echo(f"retinad: {error}", err=True)
        raise typer.Exit(ExitCode.UNAVAILABLE) from error


def extract(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="INPUT", help=_RECORDING)],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Folder of the features.")],
    config: ConfigOption = None,
    preset: Preset = None,
    checkpoint: Annotated[str | None, typer.Option(metavar="FILE", help="In place of model.checkpoint.")] = None,
    layers: Annotated[str | None, typer.Option(metavar="N,N", help="In place of model.layers.")] = None,
    tokens: Annotated[str | None, typer.Option(metavar="GROUP,GROUP", help="In place of model.tokens.")] = None,
    pool: Annotated[int | None, typer.Option(metavar="N", help="In place of model.pool.")] = None,
    output_dtype: Annotated[str | None, typer.Option(metavar="DTYPE", help="In place of model.output_dtype.")] = None,
    dtype: Annotated[str | None, typer.Option(metavar="DTYPE", help="In place of model.dtype.")] = None,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="In place of model.device.")] = None,
    resize: Annotated[str, typer.Option(metavar="crop|pad", help="How pictures are fitted to the model.")] = "crop",
    run_frames: Annotated[
        str,
        typer.Option(
            metavar="N|auto", help="Frames in one step of the model; auto: as many as fit on a GPU, else \\[stream]'s."
        ),
    ] = "auto",
    form: Annotated[str | None, typer.Option("--format", metavar="safetensors|npz", help="What the files are.")] = None,
    shard_frames: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Frames of a file at most. By default 256 MiB of them.")
    ] = None,
    save_every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How often the memory to go on from is kept.")
    ] = 60.0,
) -> None:
    """Write a recording's features to files. Stopped or killed, the same command goes on where it was."""
    keep_kernels_of(context)
    import anyio

    from retinad.pipeline.config import ResizeMode

    from ..extract.index import FORMS
    from ..extract.job import extract as run_extraction
    from ..extract.progress import open_reporter
    from ..extract.request import Extraction
    from ..versions import find_versions

    options = (
        ("--preset", "preset", preset),
        ("--checkpoint", "checkpoint", checkpoint),
        ("--layers", "layers", layers and _numbers("--layers", layers)),
        ("--tokens", "tokens", tokens and tokens.split(",")),
        ("--pool", "pool", pool),
        ("--output-dtype", "output_dtype", output_dtype),
        ("--dtype", "dtype", dtype),
        ("--device", "device", device),
    )
    kind = form or ("npz" if out.suffix == ".npz" else "safetensors")
    with _reported():
        job = _load(config, options)
        wanted = Extraction(
            source=source,
            out=out,
            model=job.model,
            stream=job.stream,
            resize=ResizeMode(_one_of("--resize", resize, tuple(ResizeMode))),
            run_frames=None if run_frames == "auto" else _count("--run-frames", run_frames),
            form="npz" if _one_of("--format", kind, FORMS) == "npz" else "safetensors",
            shard_frames=shard_frames,
            save_every_s=save_every,
        )
        with open_reporter() as reporter:
            code = anyio.run(run_extraction, wanted, reporter, find_versions()["retinad"])
    raise typer.Exit(code)


def convert(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Weights whose blocks all attend.")],
    mixers: Annotated[
        str, typer.Option(metavar="MIXER,MIXER", help="attention or kda for each global block; the pattern repeats.")
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The .safetensors file to write.")],
    config: ConfigOption = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="In place of model.preset; without a config, lingbot-map.")
    ] = None,
    half_life: Annotated[
        float,
        typer.Option(metavar="FRAMES", min=0.01, max=1e9, help="4:3 frames after which a kda memory has lost half."),
    ] = 64.0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the layers that are drawn.")] = 0,
) -> None:
    """Start a network with a memory of constant size from an attention checkpoint. The result needs training."""
    from retinad.pipeline.config import MixerName
    from retinad.pipeline.model.convert import LOST, MIXERS
    from retinad.pipeline.model.convert import convert as run_conversion

    from .memory import tokens_of_a_frame

    words = [_one_of("--mixers", word, MIXERS) for word in mixers.split(",")]
    pattern: tuple[MixerName, ...] = tuple("kda" if word == "kda" else "attention" for word in words)
    if "kda" not in pattern:
        raise typer.BadParameter("expected kda at least once", param_hint="--mixers")
    if out.suffix != ".safetensors":
        raise typer.BadParameter("expected a name that ends in .safetensors", param_hint="--output")
    if _is_same(checkpoint, out):
        raise typer.BadParameter("this is the checkpoint, which would be lost", param_hint="--output")
    with _reported():
        name = preset or (None if config else "lingbot-map")
        model = _load(config, (("--preset", "preset", name), *_NOWHERE)).model
        tokens = tokens_of_a_frame(model)
        done = run_conversion(checkpoint, out, model.network, pattern, half_life_tokens=half_life * tokens, seed=seed)
    typer.echo(f"{out}: global blocks {', '.join(map(str, done.blocks))} are kda; {done.copied} tensors as they were")
    typer.echo(f"each of them loses {', '.join(LOST)}")
    typer.echo(f"before training a kda memory loses half in {half_life:g} frames of {tokens} tokens")
    typer.echo(f"note: {done.note}")


def _load(path: Path | None, options: Sequence[tuple[str, str, object]]) -> "JobConfig":
    from ..config.job import Override, load_job_config

    given = [Override(name, "model", key, value) for name, key, value in options if value is not None]
    return load_job_config(path, given)


@contextmanager
def _reported() -> Iterator[None]:
    try:
        with reported_errors():
            yield
    except KeyboardInterrupt:  # where no signal handler had been set yet: nothing is half written
        typer.echo("retinad: stopped; nothing was written", err=True)
        raise typer.Exit(ExitCode.INCOMPLETE) from None
    except JobError as error:
        typer.echo(f"retinad: {error}", err=True)
        raise typer.Exit(error.code) from error


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there, or cannot be reached: what opens it says so
        return False


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"expected whole numbers with commas between, got {text!r}", param_hint=option
        ) from error


def _count(option: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= 1024:
        raise typer.BadParameter(f"expected auto or 1 to 1024, got {text!r}", param_hint=option)
    return int(text)


def _one_of(option: str, text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise typer.BadParameter(f"expected {' or '.join(choices)}, got {text!r}", param_hint=option)
    return text
