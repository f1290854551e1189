"""`retinad extract`: writes the features of a recording to files."""

from pathlib import Path
from typing import Annotated

import typer

from retinad.pipeline.sources.registry import KINDS, describe_kinds

from .common import (
    ConfigOption,
    HiddenArgument,
    PresetOption,
    chosen_config,
    keep_kernels_of,
    load_job,
    one_of,
    reported_job_errors,
)

_RECORDING = f"A recording: {describe_kinds(tuple(kind for kind in KINDS if kind.ends))}."


def extract(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="INPUT", help=_RECORDING)],
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", readable=False, help="Folder for the features.")
    ],
    config_argument: HiddenArgument = None,
    config: ConfigOption = None,
    preset: PresetOption = None,
    checkpoint: Annotated[str | None, typer.Option(metavar="FILE", help="Overrides model.checkpoint.")] = None,
    layers: Annotated[str | None, typer.Option(metavar="N,N", help="Overrides model.layers.")] = None,
    tokens: Annotated[str | None, typer.Option(metavar="GROUP,GROUP", help="Overrides model.tokens.")] = None,
    pool: Annotated[int | None, typer.Option(metavar="N", help="Overrides model.pool.")] = None,
    output_dtype: Annotated[str | None, typer.Option(metavar="DTYPE", help="Overrides model.output_dtype.")] = None,
    dtype: Annotated[str | None, typer.Option(metavar="DTYPE", help="Overrides model.dtype.")] = None,
    device: Annotated[str | None, typer.Option(metavar="DEVICE", help="Overrides model.device.")] = None,
    resize: Annotated[
        str | None,
        typer.Option(
            metavar="crop|pad|fit",
            help="How images are resized to the model, see `resize` in the config. By default as the preset expects.",
        ),
    ] = None,
    run_frames: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="Frames per step of the model. auto: as many as fit in the GPU's memory; "
            "on the CPU, run_frames of \\[stream].",
        ),
    ] = "auto",
    form: Annotated[
        str | None, typer.Option("--format", metavar="safetensors|npz", help="Format of the files.")
    ] = None,
    shard_frames: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Maximum number of frames per file. By default as many as fit in 256 MiB."
        ),
    ] = None,
    save_every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Interval at which the state to resume from is saved.")
    ] = 60.0,
) -> None:
    """Write a recording's features to files. If it is stopped or killed, the same command resumes it."""
    path = chosen_config(config_argument, config)
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
        ("--layers", "layers", None if layers is None else _numbers("--layers", layers)),
        ("--tokens", "tokens", None if tokens is None else tokens.split(",")),
        ("--pool", "pool", pool),
        ("--output-dtype", "output_dtype", output_dtype),
        ("--dtype", "dtype", dtype),
        ("--device", "device", device),
    )
    kind = form or ("npz" if out.suffix == ".npz" else "safetensors")
    with reported_job_errors():
        job = load_job(path, options)
        wanted = Extraction(
            source=source,
            out=out,
            model=job.model,
            stream=job.stream,
            resize=ResizeMode(one_of("--resize", resize or job.resize, tuple(ResizeMode))),
            run_frames=None if run_frames == "auto" else _count("--run-frames", run_frames),
            form="npz" if one_of("--format", kind, FORMS) == "npz" else "safetensors",
            shard_frames=shard_frames,
            save_every_s=save_every,
        )
        with open_reporter() as reporter:
            code = anyio.run(run_extraction, wanted, reporter, find_versions()["retinad"])
    raise typer.Exit(code)


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"expected whole numbers separated by commas, got {text!r}", param_hint=option
        ) from error


def _count(option: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= 1024:
        raise typer.BadParameter(f"expected auto or 1 to 1024, got {text!r}", param_hint=option)
    return int(text)
