"""`retinad convert`: makes a hybrid checkpoint, which must then be trained, from one whose blocks all use attention."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import ConfigOption, HiddenArgument, chosen_config, load_job, one_of, reported_job_errors, try_output

if TYPE_CHECKING:
    from retinad.pipeline.config import MixerName

_DEFAULT_PRESET = "lingbot-map"
_ON_CPU = (
    ("--device", "device", "cpu"),
    ("--device", "attention", "auto"),
    ("--device", "execution", "auto"),
    ("--device", "memory_dtype", "auto"),
)
"""Overrides of the config's device settings: a conversion runs no model, and needs no GPU."""


def convert(
    checkpoint: Annotated[
        Path,
        typer.Argument(metavar="CHECKPOINT", readable=False, help="Weights whose global blocks all use attention."),
    ],
    mixers: Annotated[
        str,
        typer.Option(metavar="MIXER,MIXER", help="attention or kda for each global block; the pattern repeats."),
    ],
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", readable=False, help="The .safetensors file to write.")
    ],
    config_argument: HiddenArgument = None,
    config: ConfigOption = None,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Overrides model.preset; without a config, {_DEFAULT_PRESET} by default."),
    ] = None,
    half_life: Annotated[
        float,
        typer.Option(
            metavar="FRAMES",
            min=0.01,
            max=1e9,
            help="Number of 4:3 frames in which the state of a kda block decays by half.",
        ),
    ] = 64.0,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the new layers' weights.")] = 0,
) -> None:
    """Replace attention blocks of a checkpoint by blocks with a state of constant size. The result needs training."""
    from retinad.pipeline.engine.memory_estimate import tokens_per_frame
    from retinad.pipeline.model.convert import LOST
    from retinad.pipeline.model.convert import convert as run_conversion

    path, pattern = chosen_config(config_argument, config), _pattern(mixers)
    if out.suffix != ".safetensors":
        raise typer.BadParameter("expected a name that ends in .safetensors", param_hint="--output")
    if _is_same(checkpoint, out):
        raise typer.BadParameter(
            "expected another file than the checkpoint, which would be overwritten", param_hint="--output"
        )
    with reported_job_errors():
        try_output(out)
        name = preset or (None if path else _DEFAULT_PRESET)
        model = load_job(path, (("--preset", "preset", name), *_ON_CPU)).model
        tokens = tokens_per_frame(model)
        done = run_conversion(checkpoint, out, model.network, pattern, half_life_tokens=half_life * tokens, seed=seed)
    blocks = ", ".join(map(str, done.blocks))
    typer.echo(f"{out}: global blocks {blocks} are kda now; {done.copied} tensors are unchanged")
    typer.echo(f"each of these blocks loses {', '.join(LOST)}")
    typer.echo(f"before training, a kda state decays by half in {half_life:g} frames of {tokens} tokens")
    typer.echo(f"note: {done.note}")


def _pattern(text: str) -> "tuple[MixerName, ...]":
    from retinad.pipeline.model.convert import MIXERS

    words = [one_of("--mixers", word, MIXERS) for word in text.split(",")]
    if "kda" not in words:
        raise typer.BadParameter("expected kda at least once", param_hint="--mixers")
    return tuple("kda" if word == "kda" else "attention" for word in words)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # a file is missing or cannot be reached: the code that opens it reports this
        return False
