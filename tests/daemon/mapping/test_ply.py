"""A PLY file can be read by a reader that knows only its header."""

from pathlib import Path

import numpy as np

from retinad.daemon.mapping.ply import ramp, write_ply
from retinad.daemon.mapping.voxels import VERTEX

from .ply_reader import read_ply


def test_a_file_holds_every_number_of_every_point(tmp_path: Path) -> None:
    vertices = np.zeros(300_000, VERTEX)
    random = np.random.default_rng(0)
    for name in VERTEX.names or ():
        vertices[name] = random.integers(0, 256, len(vertices))
    vertices["x"] = random.normal(size=len(vertices))
    with (tmp_path / "a.ply").open("wb") as file:
        write_ply(file, vertices, ("robot\nelement vertex 7", "unit stream"))
    rows, comments = read_ply(tmp_path / "a.ply")
    assert comments == ["robot?element vertex 7", "unit stream"]
    assert list(rows[0]) == ["x", "y", "z", "red", "green", "blue", "confidence"]
    for name in rows[0]:
        np.testing.assert_array_equal([row[name] for row in rows], vertices[name])


def test_an_empty_cloud_is_a_valid_file(tmp_path: Path) -> None:
    with (tmp_path / "a.ply").open("wb") as file:
        write_ply(file, np.zeros(0, VERTEX))
    assert read_ply(tmp_path / "a.ply") == ([], [])


def test_a_ramp_goes_from_dark_to_light_and_outliers_do_not_stretch_it() -> None:
    values = np.append(np.linspace(0, 1, 101), [1e9, -1e9])
    colours = ramp(values).astype(int).sum(axis=1)
    assert (np.diff(colours[:101]) >= 0).all()
    assert colours[0] == colours[-1] < 200
    assert colours[100] == colours[101] > 500
    assert ramp(np.zeros(0)).shape == (0, 3)
    assert len(np.unique(ramp(np.full(5, 3.0)), axis=0)) == 1
