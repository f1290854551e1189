"""Reads a camera's calibration: what OpenCV's FileStorage and ROS' camera_calibration write, in YAML or JSON."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..view_config import BROWN_COUNTS, FISHEYE_COUNT, Calibration, LensModel

_MOST_BYTES = 1 << 20
_MATRIX = ("camera_matrix", "cameraMatrix", "CameraMatrix", "Camera_Matrix", "intrinsic_matrix", "K")
_DISTORTION = (
    "distortion_coefficients",
    "Distortion_Coefficients",
    "dist_coeffs",
    "dist_coeff",
    "distCoeffs",
    "distortion",
    "D",
)
_WIDTH, _HEIGHT = ("image_width", "image_Width", "width"), ("image_height", "image_Height", "height")
_MODELS: Mapping[str, LensModel] = {
    "plumb_bob": "brown",
    "rational_polynomial": "brown",
    "brown": "brown",
    "equidistant": "fisheye",
    "fisheye": "fisheye",
    "kannala_brandt": "fisheye",
}
_MODEL_KEYS = ("distortion_model", "camera_model", "model")


class CalibrationError(ValueError):
    """A calibration file cannot be used. The message says why, without the file's name."""


def read_calibration(path: Path) -> Calibration:
    """Read a calibration file.

    Raises:
        CalibrationError: the file cannot be read, or is no calibration that can be used.
    """
    try:
        if os.stat(path).st_size > _MOST_BYTES:
            raise CalibrationError("it is larger than 1 MiB, so it is no calibration")
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise CalibrationError(f"it cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise CalibrationError("it is not text") from exc
    return replace(calibration_of(_parsed(text)), file=str(path))


def calibration_of(found: Mapping[str, Any]) -> Calibration:
    """Make a calibration from the contents of a file.

    Raises:
        CalibrationError: something is missing or wrong.
    """
    matrix = _numbers(found, _MATRIX, "a camera matrix")
    if len(matrix) != 9:
        raise CalibrationError(f"the camera matrix must have 3x3 numbers, got {len(matrix)}")
    fx, skew, cx, zero, fy, cy, *last = matrix
    if min(fx, fy) <= 0 or (zero, *last) != (0, 0, 0, 1):
        raise CalibrationError(f"the camera matrix must be [fx, 0, cx, 0, fy, cy, 0, 0, 1], got {matrix}")
    if abs(skew) > 1e-6 * fx:
        raise CalibrationError(f"the camera matrix has a skew of {skew:g}, which is not supported")
    model = _model(found)
    coefficients = _numbers(found, _DISTORTION, "") if _first(found, _DISTORTION) is not None else []
    return Calibration(
        size=(_side(found, _WIDTH), _side(found, _HEIGHT)),
        focal=(fx, fy),
        centre=(cx, cy),
        model=model,
        coefficients=_checked(coefficients, model),
    )


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else _yaml(text)
    except (ValueError, RecursionError) as exc:
        raise CalibrationError(f"it is neither YAML nor JSON: {' '.join(str(exc).split())[:200]}") from exc
    if not isinstance(found, Mapping):
        raise CalibrationError("expected names and values, such as camera_matrix and distortion_coefficients")
    return found


def _yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """A safe loader that takes OpenCV's tag for a matrix."""

    def matrix(loader: Loader, node: yaml.MappingNode) -> object:
        return loader.construct_mapping(node, deep=True)

    Loader.add_constructor("tag:yaml.org,2002:opencv-matrix", matrix)
    # OpenCV writes `%YAML:1.0`, which no version of YAML allows.
    body = "\n".join("" if line.startswith("%YAML") else line for line in text.splitlines())
    try:
        return yaml.load(body, Loader)
    except yaml.YAMLError as exc:
        raise ValueError(str(exc)) from exc


def _first(found: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((found[name] for name in names if found.get(name) is not None), None)


def _numbers(found: Mapping[str, Any], names: Sequence[str], what: str) -> list[float]:
    value = _first(found, names)
    if value is None:
        raise CalibrationError(f"it has no {what.removeprefix('a ')}: expected a key {names[0]}")
    if isinstance(value, Mapping):
        value = value.get("data")
    flat = _flat(value)
    try:  # YAML takes 1e-5, without a point, for text
        numbers = [float(number) for number in flat if isinstance(number, int | float | str)]
    except ValueError:
        numbers = []
    if not flat or len(numbers) != len(flat):
        raise CalibrationError(f"{names[0]} must be numbers, or a matrix with `data`")
    if not all(map(math.isfinite, numbers)):
        raise CalibrationError(f"{names[0]} has a number that is not finite")
    return numbers


def _flat(value: object, depth: int = 3) -> Sequence[object]:
    if isinstance(value, list) and depth:
        return [number for part in value[:1000] for number in _flat(part, depth - 1)]
    return [value]


def _side(found: Mapping[str, Any], names: Sequence[str]) -> int:
    value = _first(found, names)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65_536:
        raise CalibrationError(
            f"it must say the size of the frames: expected {names[0]}, a whole number, got {value!r}"
        )
    return value


def _model(found: Mapping[str, Any]) -> LensModel:
    name = _first(found, _MODEL_KEYS)
    if name is None:
        return "brown"
    model = _MODELS.get(str(name).lower())
    if model is None:
        known = ", ".join(_MODELS)
        raise CalibrationError(f"its distortion model {str(name)[:40]!r} is not supported: expected one of {known}")
    return model


def _checked(coefficients: list[float], model: LensModel) -> tuple[float, ...]:
    if model == "fisheye":
        if len(coefficients) != FISHEYE_COUNT:
            raise CalibrationError(f"a fisheye lens has {FISHEYE_COUNT} coefficients, got {len(coefficients)}")
        return tuple(coefficients)
    while len(coefficients) > max(BROWN_COUNTS) and coefficients[-1] == 0:  # thin prisms and tilts that are not there
        coefficients = coefficients[:-1]
    if len(coefficients) not in BROWN_COUNTS:
        counts = ", ".join(map(str, BROWN_COUNTS[1:]))
        raise CalibrationError(
            f"expected {counts} distortion coefficients (thin prisms and tilted sensors are not supported), got "
            f"{len(coefficients)}"
        )
    return tuple(coefficients)
