"""`retinad bench`: measures how fast a model and the whole service run on this machine."""

import importlib.resources
from pathlib import Path
from typing import Annotated

import typer

from .common import (
    PRESET_NAMES,
    HiddenOption,
    chosen_config,
    keep_kernels_of,
    load_service_config,
    reported_job_errors,
    try_output,
)


def bench(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG",
            readable=False,
            help="A service's config. The benchmark uses its model, and its first camera's stream, resize and queue "
            "settings. Other cameras and all frame sizes are ignored.",
        ),
    ] = None,
    config_option: HiddenOption = None,
    cameras: Annotated[
        int, typer.Option(metavar="N", min=1, max=1024, help="Number of synthetic cameras, which replace the config's.")
    ] = 1,
    steps: Annotated[int, typer.Option(metavar="N", min=2, help="Number of steps to measure.")] = 200,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Replaces the config's preset: {PRESET_NAMES}.")
    ] = None,
    size: Annotated[str, typer.Option(metavar="WxH", help="Size of the cameras' frames.")] = "1920x1080",
    fps: Annotated[
        float | None,
        typer.Option(
            metavar="FPS",
            min=0.01,
            max=1000,
            help="Frames per second of each camera. By default 30, or less if the model is slower.",
        ),
    ] = None,
    window_full: Annotated[
        bool, typer.Option("--window-full/--no-window-full", help="Fill the streams' windows before measuring.")
    ] = True,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", readable=False, help="Write all results to this file, as JSON."),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="Compare with the --json file of an earlier run."),
    ] = None,
) -> None:
    """Measure the model alone, then the whole path from a synthetic camera to a subscriber."""
    chosen = chosen_config(config, config_option)
    keep_kernels_of(context)
    from ..bench.plan import BenchPlan
    from ..bench.run import bench as run_bench
    from .sizes import SYNTHETIC, parse_size

    try:
        frame_size = parse_size(size, SYNTHETIC)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--size") from error
    with reported_job_errors():
        if json_file is not None:
            try_output(json_file)
    default = importlib.resources.files("retinad.daemon").joinpath("config.toml")
    with importlib.resources.as_file(default) as default_path:
        overrides = {} if preset is None else {"RETINAD_MODEL__PRESET": preset}
        loaded = load_service_config(chosen or default_path, overrides)
    raise typer.Exit(run_bench(BenchPlan(loaded, cameras, frame_size, steps, window_full, fps), json_file, compare))
