"""What `retinad bench` prints: the figures of a run, or what became of them since an earlier one."""

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
        part, name: where it belongs, and what it is.
        value: the number.
        unit: of it.
    """

    part: str
    name: str
    value: float
    unit: str


def figures(report: BenchReport) -> Iterator[Figure]:
    """All numbers of a report that are worth comparing, in the order in which they are printed."""
    engine, path = report.engine, report.path
    yield from _percentiles("engine", "step", engine.step_ms)
    yield Figure("engine", "step p99 / p50", engine.tail, "")
    yield Figure("engine", "steps", engine.steps_per_s, "/s")
    yield Figure("engine", "frames", engine.frames_per_s, "/s")
    if engine.gpu_busy is not None:
        yield Figure("engine", "GPU busy", 100 * engine.gpu_busy, "%")
    yield Figure("memory", "of one camera", engine.state_bytes / 2**20, "MiB")
    yield Figure("memory", "its kept pictures", engine.picture_bytes / 2**20, "MiB")
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
    """Print what was measured, and on what."""
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
    """Print each figure beside the earlier run's, with the ratio; what differs between the runs comes first."""
    settings = list(differences(before.settings, now.settings))
    if settings:
        console.print("NOT THE SAME SETTINGS: the ratios below compare different work:", style="bold red")
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
    """What differs, one line each: `cameras: 8 -> 1`."""
    old, new = _values(asdict(before)), _values(asdict(now))
    for name in dict.fromkeys([*new, *old]):
        if old.get(name) != new.get(name):
            yield f"{name}: {_shown(old.get(name))} -> {_shown(new.get(name))}"


def describe(report: BenchReport) -> Iterator[str]:
    """What ran on what, and how, in a few lines."""
    settings, machine, engine, path = report.settings, report.machine, report.engine, report.path
    yield ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    gpu = f"{machine.gpu}, driver {machine.driver}" if machine.gpu else "no GPU"
    yield f"{gpu}; {machine.cpu}, {machine.cores} cores"
    width, height = settings.size
    mixers = ", ".join(f"{settings.mixers.count(name)} x {name}" for name in dict.fromkeys(settings.mixers)) or "none"
    random = " (RANDOM: the features mean nothing)" if "random:" in settings.weights else ""
    yield f"{settings.model} on {settings.device} in {settings.dtype}; weights {settings.weights}{random}"
    yield f"mixers {mixers}; attention {settings.attention}"
    cameras = f"{settings.cameras} camera{'s' * (settings.cameras != 1)}"
    yield f"{cameras} of {width}x{height}, fitted to a width of {settings.image_width}"
    filled = "windows filled by" if settings.window_full else "windows NOT full, after"
    yield f"engine: {filled} {engine.fill_steps} steps, then {engine.steps} measured"
    if engine.epochs_begun:
        yield f"engine: {engine.epochs_begun} memories were made anew meanwhile, and were not full for a while"
    yield (
        f"path: {path.fps:g} frames/s a camera, {path.records} records measured; in all {path.captured} captured, "
        f"{path.published} published, {path.dropped} dropped, {path.failed} failed, {path.lost} lost on the way"
    )


def _values(tree: Mapping[str, object]) -> dict[str, object]:
    # The leaves, by their own names: `mixers` are in two places, and those that run are the outer ones.
    leaves = {name: value for name, value in tree.items() if not isinstance(value, dict)}
    for inner in tree.values():
        if isinstance(inner, dict):
            leaves = leaves | _values(inner) | leaves  # the first gives the order, the last the values
    return leaves


def _shown(value: object) -> str:
    # As the config writes it, without quotes.
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
        yield f"frames/s of a camera of the path: {before.path.fps:g} -> {now.path.fps:g} (--fps sets it)"


def _percentiles(part: str, name: str, value: Percentiles) -> Iterator[Figure]:
    yield Figure(part, f"{name} p50", value.p50, "ms")
    yield Figure(part, f"{name} p95", value.p95, "ms")
    yield Figure(part, f"{name} p99", value.p99, "ms")


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.3f}"
