"""A file or folder that another user made, or could replace, is refused, and the message says whose it is."""

import os
import stat
from pathlib import Path

import pytest

from retinad.pipeline.files.lock import take_lock
from retinad.pipeline.files.ownership import NotOursError, check_folder, check_way, owner_name

STRANGER = 12345

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder like /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def give_away(path: Path) -> Path:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    return path


def test_an_own_folder_in_a_shared_one_is_accepted(shared: Path) -> None:
    (shared / "mine" / "below").mkdir(parents=True)
    (shared / "mine" / "below").chmod(0o750)
    check_folder(shared / "mine" / "below")
    check_way(shared / "not" / "there" / "yet")


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o770, 0o1777])
def test_an_own_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(NotOursError, match=f"mode {mode:o}.*chmod go-w"):
        check_folder(tmp_path / "open")


def test_a_folder_whose_parent_anyone_can_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open" / "mine").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(NotOursError, match=r"every user can replace what is in .*/open \(mode 777\)"):
        check_folder(tmp_path / "open" / "mine")


@needs_root
def test_a_folder_of_a_stranger_or_in_one_is_refused_in_a_shared_folder(shared: Path) -> None:
    """He could rename `mine`, and put his own in its place."""
    (shared / "theirs" / "mine").mkdir(parents=True)
    give_away(shared / "theirs")
    for folder in (shared / "theirs", shared / "theirs" / "mine", shared / "theirs" / "not-there-yet"):
        with pytest.raises(NotOursError, match=rf"{shared}/theirs belongs to another user, uid {STRANGER}"):
            check_folder(folder)


@needs_root
def test_a_link_of_a_stranger_is_refused_wherever_it_leads(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / "below").mkdir(parents=True)
    (shared / "link").symlink_to(tmp_path / "mine")
    check_folder(shared / "link" / "below")
    give_away(shared / "link")
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        check_folder(shared / "link")
    with pytest.raises(NotOursError, match=rf"the link {shared}/link belongs to another user"):
        check_folder(shared / "link" / "below")


@needs_root
def test_a_way_that_leads_through_a_link_into_a_strangers_folder_is_refused(shared: Path, tmp_path: Path) -> None:
    (shared / "theirs" / "mine").mkdir(parents=True)
    give_away(shared / "theirs")
    (tmp_path / "link").symlink_to(shared / "theirs")
    with pytest.raises(NotOursError, match="belongs to another user"):
        check_folder(tmp_path / "link" / "mine")


@needs_root
def test_a_lock_of_a_stranger_is_refused_and_kept(shared: Path) -> None:
    (shared / "lock").write_text("1\n")
    give_away(shared / "lock")
    with pytest.raises((NotOursError, PermissionError)):  # with fs.protected_regular the kernel refuses it
        take_lock(shared / "lock")
    assert (shared / "lock").read_text() == "1\n"


def test_a_lock_is_a_plain_file_of_its_own_for_its_owner_alone(tmp_path: Path) -> None:
    os.close(take_lock(tmp_path / "lock"))
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600
    (tmp_path / "precious").write_text("data")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    (tmp_path / "second-name").hardlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name in ("link", "second-name", "fifo", "folder"):
        with pytest.raises(NotOursError, match=f"{name} is not a plain file"):
            take_lock(tmp_path / name)
    assert (tmp_path / "precious").read_text() == "data"


def test_an_owner_is_named() -> None:
    assert owner_name(0) == "root (uid 0)"
    assert owner_name(STRANGER) == f"uid {STRANGER}"
