"""A drawing of lines, discs and texts, and its SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

Colour = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""
Place = tuple[float, float]
"""x to the right and y down, in pixels."""
Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points."""

    points: Sequence[Place]
    colour: Colour
    width: float = 1.0


@dataclass(frozen=True, slots=True)
class Disc:
    """A filled circle."""

    centre: Place
    radius: float
    colour: Colour


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text. `anchor` says which part of it is at `place`; its baseline is there too."""

    place: Place
    text: str
    size: float = 13.0
    anchor: Anchor = "start"
    colour: Colour = (40, 40, 40)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A white sheet with shapes, in the order in which they are drawn."""

    width: int
    height: int
    shapes: Sequence[Line | Disc | Text]


def svg(drawing: Drawing) -> bytes:
    """The drawing as an SVG file."""
    size = {"width": str(drawing.width), "height": str(drawing.height)}
    root = ElementTree.Element(
        "svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {drawing.width} {drawing.height}", **size}
    )
    ElementTree.SubElement(root, "rect", {**size, "fill": "white"})
    for shape in drawing.shapes:
        match shape:
            case Line(points, colour, width):
                ElementTree.SubElement(
                    root,
                    "polyline",
                    {
                        "points": " ".join(f"{x:.2f},{y:.2f}" for x, y in points),
                        "fill": "none",
                        "stroke": _hex(colour),
                        "stroke-width": f"{width:g}",
                        "stroke-linejoin": "round",
                    },
                )
            case Disc((x, y), radius, colour):
                at = {"cx": f"{x:.2f}", "cy": f"{y:.2f}", "r": f"{radius:g}"}
                ElementTree.SubElement(root, "circle", {**at, "fill": _hex(colour)})
            case Text((x, y), text, size_px, anchor, colour):
                at = {"x": f"{x:.2f}", "y": f"{y:.2f}", "text-anchor": anchor}
                font = {"font-size": f"{size_px:g}", "font-family": "sans-serif", "fill": _hex(colour)}
                ElementTree.SubElement(root, "text", {**at, **font}).text = _plain(text)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written


def _hex(colour: Colour) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)  # XML has no control characters
