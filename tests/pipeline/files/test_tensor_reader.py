"""Rows of shards are those that were written; damage is named with its file."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from retinad.pipeline.files.tensor_reader import UnreadableTensors, open_rows

DEPTH = np.arange(24, dtype=np.float16).reshape(4, 2, 3)
POSE = np.arange(8, dtype=np.float32).reshape(4, 2)


@pytest.fixture(params=["safetensors", "npz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    found = tmp_path / f"a.{request.param}"
    if request.param == "npz":
        np.savez(found, **{"depth": DEPTH, "pose/x": POSE})  # type: ignore[arg-type]  # its stub mistakes them
    else:
        save_file({"depth": DEPTH, "pose/x": POSE}, found)
    return found


def test_each_row_is_as_it_was_written(path: Path) -> None:
    rows = open_rows(path)
    for number in (3, 0, 1):
        for name, tensor in (("depth", DEPTH), ("pose/x", POSE)):
            row = rows.row(name, number)
            assert row.dtype == tensor.dtype
            np.testing.assert_array_equal(row, tensor[number])


@pytest.mark.parametrize(("name", "number"), [("none", 0), ("depth", 4)])
def test_what_is_not_there_is_named(path: Path, name: str, number: int) -> None:
    with pytest.raises(UnreadableTensors, match=rf"{name}, row {number}, of .*{path.name} cannot be read"):
        open_rows(path).row(name, number)


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, None])
def test_a_file_that_cannot_be_read_is_named(path: Path, content: bytes | None) -> None:
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(UnreadableTensors, match=rf"{path.name} cannot be read"):
        open_rows(path)


def test_a_damaged_npz_is_named(tmp_path: Path) -> None:
    """Its table of contents is at the end, so it can be opened although a tensor is damaged."""
    path = tmp_path / "a.npz"
    np.savez(path, depth=DEPTH)
    data = bytearray(path.read_bytes())
    data[60:140] = bytes(80)
    path.write_bytes(data)
    with pytest.raises(UnreadableTensors, match=r"a\.npz cannot be read"):
        open_rows(path).row("depth", 0)
