"""A file is written whole, and never into something that was there under its temporary name."""

import os
from pathlib import Path

import pytest

from retinad.pipeline.files.atomic import PARTIAL, try_writing, written_whole


def test_a_file_under_the_temporary_name_is_replaced_not_written_to(tmp_path: Path) -> None:
    """Another user may have made it in a shared folder: a second name of a precious file, or a file of his own."""
    precious, path = tmp_path / "precious", tmp_path / "out"
    precious.write_text("data")
    for plant in (os.link, os.symlink):
        plant(precious, f"{path}{PARTIAL}")
        try_writing(path)
        plant(precious, f"{path}{PARTIAL}")
        with written_whole(path) as file:
            file.write(b"new")
        assert (precious.read_text(), path.read_text()) == ("data", "new")
        path.unlink()
    assert [entry.name for entry in tmp_path.iterdir()] == ["precious"]


def test_a_folder_under_the_temporary_name_is_an_error(tmp_path: Path) -> None:
    (tmp_path / f"out{PARTIAL}").mkdir()
    with pytest.raises(OSError, match=PARTIAL), written_whole(tmp_path / "out"):
        pass
