"""A frame is named after the file that it was read from, or after none."""

import os
from pathlib import Path

import pytest

from retinad.daemon.extract.index import Failure, Unreadable
from retinad.daemon.extract.names import NAMED_AT_MOST, find_unreadable, picture_names


def test_pictures_are_named_in_the_order_of_their_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/f2.png", "a/f10.png", "b/f1.png", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "video.mp4").touch()
    assert picture_names(str(tmp_path / "a"), 2) == ["f2.png", "f10.png"]
    assert picture_names(f"file://{tmp_path}/a/f2.png", 1) == ["f2.png"]
    assert picture_names(f"{tmp_path}/*/*.png", 3) == ["a/f2.png", "a/f10.png", "b/f1.png"]
    monkeypatch.chdir(tmp_path / "a")
    assert picture_names("*.png", 2) == picture_names("./f*.png", 2) == ["f2.png", "f10.png"]
    for source in ("synthetic:", str(tmp_path / "video.mp4"), str(tmp_path / "gone"), "rtps://x"):
        assert not picture_names(source, 1)


def test_a_folder_that_changed_meanwhile_names_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    assert not picture_names(str(tmp_path), 2)


def test_a_name_that_is_no_text_can_be_written_to_an_index(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.png")).touch()
    assert picture_names(str(tmp_path), 1) == ["\\xff.png"]


def test_unreadable_frames_are_all_counted_and_the_first_ones_named() -> None:
    count, named = find_unreadable((), [Failure(0, "too narrow")], 3000, ["a.png", "b.png"])
    assert (count, len(named)) == (2999, NAMED_AT_MOST)
    assert named[:2] == (Unreadable(1, "b.png"), Unreadable(2, None))
