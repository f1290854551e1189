"""Frames of image folders have file names; other frames have none."""

import os
from pathlib import Path

import pytest

from retinad.daemon.extract.index import Failure, Unreadable
from retinad.daemon.extract.names import NAMED_AT_MOST, find_unreadable, image_names


def test_images_are_named_in_the_order_of_their_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/f2.png", "a/f10.png", "b/f1.png", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "video.mp4").touch()
    assert image_names(str(tmp_path / "a"), 2) == ["f2.png", "f10.png"]
    assert image_names(f"file://{tmp_path}/a/f2.png", 1) == ["f2.png"]
    assert image_names(f"{tmp_path}/*/*.png", 3) == ["a/f2.png", "a/f10.png", "b/f1.png"]
    monkeypatch.chdir(tmp_path / "a")
    assert image_names("*.png", 2) == image_names("./f*.png", 2) == ["f2.png", "f10.png"]
    for source in ("synthetic:", str(tmp_path / "video.mp4"), str(tmp_path / "gone"), "rtps://x"):
        assert not image_names(source, 1)


def test_a_folder_that_has_changed_names_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    assert not image_names(str(tmp_path), 2)


def test_an_undecodable_name_is_escaped_for_the_index(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.png")).touch()
    assert image_names(str(tmp_path), 1) == ["\\xff.png"]


def test_all_unreadable_frames_are_counted_and_the_first_ones_named() -> None:
    count, named = find_unreadable((), [Failure(0, "too narrow")], 3000, ["a.png", "b.png"])
    assert (count, len(named)) == (2999, NAMED_AT_MOST)
    assert named[:2] == (Unreadable(1, "b.png"), Unreadable(2, None))
