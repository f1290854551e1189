"""Draws a camera's path from above and from the side, to one scale."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .drawing import Disc, Drawing, Line, Place, Text
from .path import CameraPath, Rows, centres

WIDTH, HEIGHT = 1200, 660
MAX_DRAWN = 5000
"""Largest number of points that are drawn; of a longer path every n-th one."""
MAX_MARKS = 200
"""Largest number of epochs that are marked; of more, every n-th one."""
MAX_NUMBERED = 12
"""Largest number of marks that have the epoch's number beside them."""

_BLUE, _RED, _GREEN, _BLACK, _GREY = (31, 90, 180), (200, 40, 30), (30, 140, 60), (40, 40, 40), (205, 205, 205)
_PANEL = 480
_TOP, _LEFT, _GAP = 90, 80, 80

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class _Panel:
    # One of the two views: its corner, its scale in pixels a unit, and the middle of what it shows.
    left: float
    middle: Floats
    scale: float

    def place(self, point: Floats) -> Place:
        x, y = (point - self.middle) * self.scale
        return self.left + _PANEL / 2 + float(x), _TOP + _PANEL / 2 - float(y)


def draw_path(path: CameraPath, name: str) -> Drawing:
    """Draw a path that has at least one pose.

    The left view is from above: the world's x axis to the right, its z axis upwards. The right view is from the side: z
    to the right, and height, against the y axis, upwards. These are the axes of the trajectory's first camera; the
    world need not be level.

    Args:
        path: the poses.
        name: what the path is of.
    """
    rows = path.rows[np.unique(np.linspace(0, len(path) - 1, MAX_DRAWN).astype(np.intp))]
    x, y, z = centres(rows).T
    views = np.stack([x, z], axis=1), np.stack([z, -y], axis=1)
    extent = max(float(np.ptp(view, axis=0).max()) for view in views)
    scale = 0.9 * _PANEL / extent if extent > 0 else 1.0
    shapes: list[Line | Disc | Text] = [*_heading(path, name)]
    names = ("x", "z", "from above"), ("z", "-y", "from the side")
    for number, (view, (across, up, title)) in enumerate(zip(views, names, strict=True)):
        panel = _Panel(_LEFT + number * (_PANEL + _GAP), (view.min(axis=0) + view.max(axis=0)) / 2, scale)
        shapes += _frame(panel, extent, (f"{across} ({path.unit})", f"{up} ({path.unit})"), title)
        shapes += _path(panel, view, rows)
    return Drawing(WIDTH, HEIGHT, shapes)


def epoch_starts(rows: Rows) -> list[int]:
    """The indices of the poses with which an epoch begins, without the first pose."""
    return (np.flatnonzero(np.diff(rows["epoch"])) + 1).tolist()


def _heading(path: CameraPath, name: str) -> Iterator[Line | Disc | Text]:
    epochs = len(epoch_starts(path.rows)) + 1
    thinned = f", {path.dropped} older ones left out" if path.dropped else ""
    lost = f", {path.lost} frames without" if path.lost else ""
    yield Text((_LEFT, 32), name, 18)
    yield Text(
        (_LEFT, 54),
        f"{len(path)} poses{thinned}{lost}; {epochs} epoch{'s' * (epochs > 1)}; length {path.length:.4g} ({path.unit})",
    )
    at = _LEFT + 640
    for colour, text in ((_GREEN, "start"), (_BLACK, "now"), (_BLUE, "new epoch"), (_RED, "doubtful alignment")):
        yield Disc((at, 50), 4, colour)
        yield Text((at + 9, 54), text)
        at += 30 + 8 * len(text)


def _path(panel: _Panel, view: Floats, rows: Rows) -> Iterator[Line | Disc | Text]:
    places = [panel.place(point) for point in view]
    starts = epoch_starts(rows)
    for begin, end in zip([0, *starts], [*starts, len(rows)], strict=True):
        # From the last pose of the previous epoch on, so that the line has no gaps.
        yield Line(places[max(0, begin - 1) : end], _RED if rows["doubtful"][begin] else _BLUE, 1.6)
    marked = starts[:: -(-len(starts) // MAX_MARKS)] if starts else []
    for index in marked:
        yield Disc(places[index], 3.5, _RED if rows["doubtful"][index] else _BLUE)
        if len(marked) <= MAX_NUMBERED:
            x, y = places[index]
            yield Text((x + 5, y - 5), str(rows["epoch"][index]), 11)
    yield Disc(places[0], 5, _GREEN)
    yield Disc(places[-1], 5, _BLACK)


def _frame(panel: _Panel, extent: float, labels: tuple[str, str], title: str) -> Iterator[Line | Disc | Text]:
    left, right, top, bottom = panel.left, panel.left + _PANEL, float(_TOP), float(_TOP + _PANEL)
    half = _PANEL / 2 / panel.scale
    step = _step(extent / 5 if extent > 0 else 2 * half / 5)
    for axis in (0, 1):
        for tick in _ticks(panel.middle[axis] - half, panel.middle[axis] + half, step):
            point = panel.middle.copy()
            point[axis] = tick
            x, y = panel.place(point)
            if axis == 0:
                yield Line([(x, top), (x, bottom)], _GREY)
                yield Text((x, bottom + 18), f"{tick:.6g}", 12, "middle")
            else:
                yield Line([(left, y), (right, y)], _GREY)
                yield Text((left - 6, y + 4), f"{tick:.6g}", 12, "end")
    yield Line([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], _BLACK)
    yield Text((left + _PANEL / 2, bottom + 40), labels[0], 13, "middle")
    yield Text((left, top - 8), f"{labels[1]}  {title}", 13)


def _step(rough: float) -> float:
    # 1, 2 or 5 times a power of ten, at least `rough`.
    power = 10.0 ** np.floor(np.log10(rough))
    return float(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999))


def _ticks(low: float, high: float, step: float) -> Iterator[float]:
    for number in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1):
        yield number * step
