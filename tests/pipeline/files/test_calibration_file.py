"""Calibration files as they are found in the wild, and files that are none."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from retinad.pipeline.files.calibration_file import CalibrationError, read_calibration
from retinad.pipeline.view_config import Calibration

CAMERA = np.array([[600.5, 0, 319.25], [0, 601.5, 239.75], [0, 0, 1]])
LENS = np.array([-0.25, 0.125, 0.001, -0.002, 0.03])
EXPECTED = Calibration((640, 480), (600.5, 601.5), (319.25, 239.75), "brown", tuple(LENS))

ROS = """\
image_width: 640
image_height: 480
camera_name: door
camera_matrix:
  rows: 3
  cols: 3
  data: [600.5, 0, 319.25, 0, 601.5, 239.75, 0, 0, 1]
distortion_model: plumb_bob
distortion_coefficients:
  rows: 1
  cols: 5
  data:
  - -0.25
  - 0.125
  - 1e-3
  - -2e-3
  - 0.03
rectification_matrix: {rows: 3, cols: 3, data: [1, 0, 0, 0, 1, 0, 0, 0, 1]}
"""


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json"])
def test_what_opencv_writes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"camera{suffix}"
    storage = cv2.FileStorage(str(path), cv2.FILE_STORAGE_WRITE)
    storage.write("image_width", 640)
    storage.write("image_height", 480)
    storage.write("camera_matrix", CAMERA)
    storage.write("distortion_coefficients", LENS.reshape(1, 5))
    storage.release()
    found = read_calibration(path)
    assert found == EXPECTED
    assert found.file == str(path)


def test_what_ros_writes(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(ROS)
    assert read_calibration(tmp_path / "a.yaml") == EXPECTED


def test_plain_json_with_short_names_and_a_fisheye_lens(tmp_path: Path) -> None:
    text = json.dumps(
        {"K": CAMERA.tolist(), "D": [0.1, 0.2, 0.3, 0.4], "width": 640, "height": 480, "model": "fisheye"}
    )
    (tmp_path / "a.json").write_text(text)
    found = read_calibration(tmp_path / "a.json")
    assert (found.model, found.coefficients) == ("fisheye", (0.1, 0.2, 0.3, 0.4))


def test_a_camera_without_distortion_needs_no_coefficients(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"K": CAMERA.tolist(), "width": 640, "height": 480}))
    assert not read_calibration(tmp_path / "a.json").has_distortion


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected names and values"),
        ("a: [", "neither YAML nor JSON"),
        ("{", "neither YAML nor JSON"),
        ("- 1\n- 2\n", "expected names and values"),
        ("image_width: 640\n", "no camera matrix"),
        (ROS.replace("data: [600.5, 0,", "data: [600.5,"), "3x3 numbers, got 8"),
        (ROS.replace("600.5", "-600.5"), "the camera matrix must be"),
        (ROS.replace("600.5, 0,", "600.5, 3,"), "skew"),
        (ROS.replace("600.5", ".nan"), "not finite"),
        (ROS.replace("600.5", "six"), "must be numbers"),
        (ROS.replace("plumb_bob", "division"), "'division' is not supported: expected one of plumb_bob"),
        (ROS.replace("plumb_bob", "equidistant"), "a fisheye lens has 4 coefficients, got 5"),
        (ROS.replace("  - 0.03\n", "  - 0.03\n  - 0.1\n"), "expected 4, 5, 8 distortion coefficients"),
        (ROS.replace("image_width: 640\n", ""), "expected image_width, a whole number, got None"),
        (ROS.replace("640", "0"), "expected image_width"),
        ("K: !!python/object/apply:os.system ['true']\n", "neither YAML nor JSON"),
        ("[" * 5000, "neither YAML nor JSON"),
        ("a: &a [1]\n" + "".join(f"b{n}: &b{n} [*a,*a,*a,*a]\n" for n in range(9)), "no camera matrix"),
    ],
)
def test_what_is_no_calibration_is_refused_with_the_reason(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(CalibrationError, match=said.replace("[", r"\[")):
        read_calibration(tmp_path / "a.yaml")


def test_files_that_cannot_be_read_are_named_by_their_fault(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="No such file"):
        read_calibration(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CalibrationError, match="it is not text"):
        read_calibration(tmp_path / "binary.yaml")
    (tmp_path / "large.yaml").write_bytes(b" " * (1 << 20) + b"x")
    with pytest.raises(CalibrationError, match="larger than 1 MiB"):
        read_calibration(tmp_path / "large.yaml")
