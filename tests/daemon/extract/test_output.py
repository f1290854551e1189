"""The folder of an extraction: who else could replace the features in it."""

import os
from pathlib import Path

import pytest

from retinad.daemon.extract.output import others_note


def test_a_folder_of_ones_own_has_no_note(tmp_path: Path) -> None:
    assert others_note(tmp_path / "out") is None
    (tmp_path / "team").mkdir()
    (tmp_path / "team").chmod(0o770)
    assert others_note(tmp_path / "team") is None


def test_a_folder_in_which_every_user_can_replace_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert f"chmod o-w {tmp_path}/open" in str(others_note(tmp_path / "open" / "out"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_folder_of_another_user_is_named_with_its_owner(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, 12345)
    for folder in (tmp_path / "theirs", tmp_path / "theirs" / "out"):
        assert f"{tmp_path}/theirs belongs to another user, uid 12345" in str(others_note(folder))
