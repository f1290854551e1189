"""Written files can be read by safetensors, and are either complete or absent."""

import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from retinad.pipeline.files.atomic import PRIVATE, written_whole
from retinad.pipeline.files.tensors import Entry, dtype_name, tensor_bytes, write_tensor_file

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def entry(name: str, value: torch.Tensor) -> Entry:
    return Entry(name, dtype_name(value.dtype), tuple(value.shape), (tensor_bytes(row) for row in (value,)))


def test_every_format_and_shape_is_read_back(tmp_path: Path) -> None:
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES + INTEGERS}
    tensors |= {"alone": torch.tensor(3.5), "none": torch.zeros(0, 4), "turned": torch.arange(6.0).reshape(2, 3).t()}
    write_tensor_file(tmp_path / "a", {"why": "test"}, [entry(name, value) for name, value in tensors.items()])
    found = load_file(tmp_path / "a")
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    with safe_open(tmp_path / "a", "pt") as file:
        assert file.metadata() == {"why": "test"}


def test_a_tensor_may_be_written_in_pieces_and_must_be_complete(tmp_path: Path) -> None:
    value = torch.arange(12.0).reshape(4, 3)
    pieces = Entry("a", "F32", (4, 3), (tensor_bytes(row) for row in value))
    write_tensor_file(tmp_path / "a", {}, [pieces], sync_each=True)
    assert torch.equal(load_file(tmp_path / "a")["a"], value)
    with pytest.raises(ValueError, match="a: expected 48 bytes, got 36"):
        write_tensor_file(tmp_path / "a", {}, [Entry("a", "F32", (4, 3), (tensor_bytes(row) for row in value[:3]))])
    assert torch.equal(load_file(tmp_path / "a")["a"], value), "the previous file is unchanged"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_unsupported_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="complex64"):
        dtype_name(torch.complex64)


@pytest.mark.parametrize(("mode", "found"), [(PRIVATE, 0o600), (0o666, 0o640)])
def test_permissions_follow_the_mode_and_the_umask(tmp_path: Path, mode: int, found: int) -> None:
    before = os.umask(0o027)
    try:
        with written_whole(tmp_path / "a", mode) as file:
            file.write(b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == found


def test_a_failed_write_leaves_the_previous_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")
    with pytest.raises(TypeError), written_whole(tmp_path / "a") as file:
        file.writelines((b"after", "no bytes"))  # type: ignore[arg-type]
    assert (tmp_path / "a").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
