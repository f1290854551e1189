"""The output of `retinad bench`: the figures of a run, and a comparison with an earlier run."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .results import BenchReport, BenchSettings, Machine, Percentiles


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a report.

    Attributes:
        part, name: the part of the product that was measured, and the name of the measured quantity.
        value: the number.
        unit: unit of the number.
    """

    part: str
    name: str
    value: float
    unit: str


def figures(report: BenchReport) -> Iterator[Figure]:
    """Yield all numbers of a report that are compared with another report, in the order of the table."""
    engine, path = report.engine, report.path
    yield from _percentiles("engine", "step", engine.step_ms)
    yield Figure("engine", "step p99 / p50", engine.tail, "")
    yield Figure("engine", "steps", engine.steps_per_s, "/s")
    yield Figure("engine", "frames", engine.frames_per_s, "/s")
    if engine.gpu_busy is not None:
        yield Figure("engine", "GPU busy", 100 * engine.gpu_busy, "%")
    yield Figure("memory", "one stream", engine.state_bytes / 2**20, "MiB")
    yield Figure("memory", "its recent images", engine.image_bytes / 2**20, "MiB")
    yield Figure("memory", "peak, " + ("GPU" if engine.reserved_bytes else "process"), engine.peak_bytes / 2**20, "MiB")
    if engine.reserved_bytes is not None:
        yield Figure("memory", "peak reserved, GPU", engine.reserved_bytes / 2**20, "MiB")
    yield Figure("path", "frames", path.frames_per_s, "/s")
    yield from _percentiles("path", "capture to publish", path.capture_to_publish_ms)
    yield from _percentiles("path", "capture to receive", path.capture_to_receive_ms)
    yield from _percentiles("path", "outside the model", path.outside_model_ms)
    for name, part in (
        ("queue", path.queue_ms),
        ("preprocess", path.preprocess_ms),
        ("model", path.model_ms),
        ("publish", path.publish_ms),
    ):
        yield Figure("path", f"{name} p50", part.p50, "ms")


def print_report(report: BenchReport, console: Console) -> None:
    """Print the machine, the settings and the figures."""
    for line in describe(report):
        console.print(escape(line), soft_wrap=True)
    table = Table(box=box.SIMPLE)
    for heading in ("part", "figure"):
        table.add_column(heading)
    table.add_column("value", justify="right")
    table.add_column("")
    for figure in figures(report):
        table.add_row(figure.part, figure.name, _number(figure.value), figure.unit)
    console.print(table)


def print_comparison(before: BenchReport, now: BenchReport, console: Console) -> None:
    """Print the differences between two runs, then each figure beside that of the earlier run, with their ratio."""
    settings = list(differences(before.settings, now.settings))
    if settings:
        console.print("DIFFERENT SETTINGS: the ratios below compare different work:", style="bold red")
    for line in (*settings, *differences(before.machine, now.machine), *_rates(before, now)):
        console.print(escape(f"  {line}"), soft_wrap=True)
    earlier = {(figure.part, figure.name): figure.value for figure in figures(before)}
    table = Table(box=box.SIMPLE)
    for heading in ("part", "figure"):
        table.add_column(heading)
    for heading in ("before", "now", "now / before"):
        table.add_column(heading, justify="right")
    for figure in figures(now):
        old = earlier.get((figure.part, figure.name))
        ratio = f"{figure.value / old:.3f}" if old else "-"
        shown = "-" if old is None else _number(old)
        table.add_row(figure.part, f"{figure.name} {figure.unit}".strip(), shown, _number(figure.value), ratio)
    console.print(table)


def differences(before: BenchSettings | Machine, now: BenchSettings | Machine) -> Iterator[str]:
    """Yield the differences, one line each, such as `cameras: 8 -> 1`."""
    old, new = _values(asdict(before)), _values(asdict(now))
    for name in dict.fromkeys([*new, *old]):
        if old.get(name) != new.get(name):
            yield f"{name}: {_shown(old.get(name))} -> {_shown(new.get(name))}"


def describe(report: BenchReport) -> Iterator[str]:
    """Yield a few lines that describe the machine, the model and the workload."""
    model, workload = report.settings.model, report.settings.workload
    machine, engine, path = report.machine, report.engine, report.path
    yield ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    gpu = f"{machine.gpu}, driver {machine.driver}" if machine.gpu else "no GPU"
    yield f"{gpu}; {machine.cpu}, {machine.cores} cores"
    width, height = workload.size
    mixers = ", ".join(f"{model.mixers.count(name)} x {name}" for name in dict.fromkeys(model.mixers)) or "none"
    random = " (RANDOM: the features are meaningless)" if "random:" in model.weights else ""
    yield f"{model.model} on {model.device} in {model.dtype}; weights {model.weights}{random}"
    yield f"mixers {mixers}; attention {model.attention}"
    cameras = f"{workload.cameras} camera{'s' * (workload.cameras != 1)}"
    yield f"{cameras} of {width}x{height}, resized to a width of {model.image_width}"
    windows = "windows full" if workload.window_full else "windows NOT full"
    yield f"engine: {windows} after {engine.fill_steps} steps, then {engine.steps} measured"
    if engine.epochs_begun:
        yield f"engine: {engine.epochs_begun} epochs began in this time, so some streams were not full for a while"
    yield (
        f"path: each camera sends {path.fps:g} frames/s; {path.records} records were measured; of {path.captured} "
        f"frames, {path.published} were published, {path.dropped} dropped, {path.failed} failed, {path.lost} lost in "
        "transit"
    )


def _values(tree: Mapping[str, object]) -> dict[str, object]:
    # The leaves of the tree by name. `mixers` occurs twice: the outer value, which lists the mixers that run, is used.
    leaves = {name: value for name, value in tree.items() if not isinstance(value, dict)}
    for inner in tree.values():
        if isinstance(inner, dict):
            leaves = leaves | _values(inner) | leaves  # the first operand sets the order, the last one sets the values
    return leaves


def _shown(value: object) -> str:
    # Values are written as in the config, but without quotes.
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case list() | tuple():
            return f"[{', '.join(map(_shown, value))}]"
        case _:
            return str(value)


def _rates(before: BenchReport, now: BenchReport) -> Iterator[str]:
    if before.path.fps != now.path.fps:
        yield f"frames/s that each camera sends: {before.path.fps:g} -> {now.path.fps:g} (set by --fps)"


def _percentiles(part: str, name: str, value: Percentiles) -> Iterator[Figure]:
    yield Figure(part, f"{name} p50", value.p50, "ms")
    yield Figure(part, f"{name} p95", value.p95, "ms")
    yield Figure(part, f"{name} p99", value.p99, "ms")


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.3f}"
