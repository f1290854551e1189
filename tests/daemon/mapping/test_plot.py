"""The plot shows the path to scale from two sides, marks epochs, and names the unit."""

import sys
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest

from retinad.daemon.exit_codes import ExitCode, JobError
from retinad.daemon.mapping.drawing import Disc, Drawing, Line, Text, svg
from retinad.daemon.mapping.path import CameraPath
from retinad.daemon.mapping.plot import HEIGHT, MAX_DRAWN, MAX_MARKS, WIDTH, draw_path
from retinad.daemon.mapping.png import check_opencv, png

from .frames import frame

SVG = "{http://www.w3.org/2000/svg}"
RED, BLUE, GREEN, BLACK = (200, 40, 30), (31, 90, 180), (30, 140, 60), (40, 40, 40)


def path_of(*places: tuple[float, float, float], epochs: tuple[int, ...] | None = None) -> CameraPath:
    path = CameraPath()
    for number, at in enumerate(places):
        epoch = epochs[number] if epochs else 0
        path.add(frame(number, at, epoch=epoch, doubt="depths differ" if epoch == 2 else None))
    return path


def ends(path: CameraPath, view: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where the path starts and where it is now, in the view from above (0) or from the side (1)."""
    discs = [shape for shape in draw_path(path, "robot").shapes if isinstance(shape, Disc) and shape.radius == 5]
    start, now = discs[2 * view : 2 * view + 2]
    assert (start.colour, now.colour) == (GREEN, BLACK)
    return start.centre, now.centre


def test_from_above_x_is_to_the_right_and_z_is_upwards() -> None:
    (x, y), (to_x, to_y) = ends(path_of((0, 0, 0), (3, 0, 0)), 0)
    assert (to_x > x, to_y == y) == (True, True)
    (x, y), (to_x, to_y) = ends(path_of((0, 0, 0), (0, 0, 3)), 0)
    assert (to_x == x, to_y < y) == (True, True)


def test_from_the_side_z_is_to_the_right_and_a_camera_that_rises_goes_up() -> None:
    """The world's y axis is down."""
    (x, y), (to_x, to_y) = ends(path_of((0, 0, 0), (0, 0, 3)), 1)
    assert (to_x > x, to_y == y) == (True, True)
    (x, y), (to_x, to_y) = ends(path_of((0, 0, 0), (0, -3, 0)), 1)
    assert (to_x == x, to_y < y) == (True, True)


def test_both_views_have_one_scale_and_stay_on_the_sheet() -> None:
    path = path_of((1e6, 0, 0), (1e6 + 4, -1, 2))
    (x, y), (to_x, to_y) = ends(path, 0)
    (side_x, side_y), (to_side_x, to_side_y) = ends(path, 1)
    across, up = to_x - x, y - to_y
    assert across == pytest.approx(2 * up, rel=1e-3)
    assert to_side_x - side_x == pytest.approx(up, rel=1e-3)
    assert side_y - to_side_y == pytest.approx(across / 4, rel=1e-3)
    for shape in draw_path(path, "robot").shapes:
        places = shape.points if isinstance(shape, Line) else [shape.centre if isinstance(shape, Disc) else shape.place]
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)


@pytest.mark.parametrize("count", [1, 2])
def test_a_camera_that_stands_still_is_drawn(count: int) -> None:
    (x, y), now = ends(path_of(*[(1.0, 2.0, 3.0)] * count), 0)
    assert (x, y) == now


def test_epochs_are_marked_and_doubtful_ones_are_red() -> None:
    path = path_of(*((float(n), 0.0, 0.0) for n in range(6)), epochs=(0, 0, 1, 1, 2, 2))
    shapes = draw_path(path, "robot").shapes
    marks = [shape for shape in shapes if isinstance(shape, Disc) and shape.radius == 3.5]
    assert [mark.colour for mark in marks] == [BLUE, RED] * 2  # in each view
    assert [shape.text for shape in shapes if isinstance(shape, Text) and shape.size == 11] == ["1", "2"] * 2
    lines = [shape for shape in shapes if isinstance(shape, Line) and shape.width == 1.6]
    assert [(line.colour, len(line.points)) for line in lines[:3]] == [(BLUE, 2), (BLUE, 3), (RED, 3)]
    assert lines[0].points[-1] == lines[1].points[0], "the line has no gap between epochs"
    assert lines[2].points[0] == lines[1].points[-1]


def test_the_unit_and_the_counts_are_named() -> None:
    path = path_of((0, 0, 0), (3, 0, 4), epochs=(0, 1))
    path.add(frame(2, lost=True))
    texts = [shape.text for shape in draw_path(path, "robot of tcp://x").shapes if isinstance(shape, Text)]
    assert "robot of tcp://x" in texts
    assert "2 poses, 1 frames without; 2 epochs; length 5 (stream)" in texts
    assert {"x (stream)", "z (stream)  from above", "-y (stream)  from the side"} <= set(texts)


def test_the_plot_of_a_long_path_is_bounded() -> None:
    path = CameraPath(max_poses=20_000)
    for number in range(20_000):
        path.add(frame(number, (float(number), 0.0, 0.0), epoch=number // 20))
    shapes = draw_path(path, "robot").shapes
    drawn = sum(len(shape.points) for shape in shapes if isinstance(shape, Line) and shape.width == 1.6)
    assert drawn <= 2 * (MAX_DRAWN + 1000)
    assert sum(isinstance(shape, Disc) for shape in shapes) <= 2 * (MAX_MARKS + 2) + 4
    assert len(svg(Drawing(WIDTH, HEIGHT, shapes))) < 500_000


def test_an_svg_holds_the_same_shapes_and_no_markup_of_others() -> None:
    drawing = Drawing(
        60, 40, (Line([(1, 2), (3, 4.5)], RED, 2), Disc((5, 6), 7, BLUE), Text((8, 9), "<b>&\x00", 10, "end"))
    )
    root = ElementTree.fromstring(svg(drawing))
    assert root.attrib == {"viewBox": "0 0 60 40", "width": "60", "height": "40"}
    line, disc, text = root[1:]
    assert (line.tag, line.attrib["points"], line.attrib["stroke"]) == (
        f"{SVG}polyline",
        "1.00,2.00 3.00,4.50",
        "#c8281e",
    )
    assert (disc.tag, disc.attrib["cx"], disc.attrib["fill"]) == (f"{SVG}circle", "5.00", "#1f5ab4")
    assert (text.tag, text.text, text.attrib["text-anchor"]) == (f"{SVG}text", "<b>&?", "end")


def test_a_png_has_the_shapes_in_their_places_and_colours() -> None:
    drawing = Drawing(60, 40, (Line([(5, 20), (55, 20)], RED, 3), Disc((30, 8), 5, BLUE), Text((30, 38), "abc", 10)))
    image = cv2.imdecode(np.frombuffer(png(drawing), np.uint8), cv2.IMREAD_COLOR_RGB)
    assert image is not None
    assert image.shape == (40, 60, 3)
    assert tuple(image[20, 30]) == RED
    assert tuple(image[8, 30]) == BLUE
    assert tuple(image[8, 45]) == (255, 255, 255)
    assert image[28:40, 30:].min() < 128


def test_without_opencv_a_png_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(JobError, match=r"write an \.svg, which needs nothing, or run pip install opencv") as caught:
        check_opencv()
    assert caught.value.code is ExitCode.UNAVAILABLE
