"""The service's folders belong to it alone: another user cannot create one first and listen in."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from retinad.daemon.config.directories import (
    Directories,
    DirectoryError,
    UnwritableError,
    find_directories,
    held,
    make_private,
    writing_problem,
)
from retinad.daemon.exit_codes import ExitCode

TMP = f"/tmp/retinad-{os.getuid()}"


@pytest.mark.parametrize(
    ("environment", "runtime", "state", "cache"),
    [
        (
            {"RUNTIME_DIRECTORY": "/run/a:/run/b", "STATE_DIRECTORY": "/var/lib/a", "CACHE_DIRECTORY": "/var/cache/a"},
            "/run/a",
            "/var/lib/a",
            "/var/cache/a",
        ),
        (
            {"XDG_RUNTIME_DIR": "/run/user/1", "XDG_STATE_HOME": "/s", "XDG_CACHE_HOME": "/c"},
            "/run/user/1/retinad",
            "/s/retinad",
            "/c/retinad",
        ),
        ({"HOME": "/home/me"}, TMP, "/home/me/.local/state/retinad", "/home/me/.cache/retinad"),
        ({}, TMP, f"{TMP}/state", f"{TMP}/cache"),
        ({"RUNTIME_DIRECTORY": "relative", "HOME": ""}, TMP, f"{TMP}/state", f"{TMP}/cache"),
    ],
)
def test_systemd_comes_first_then_xdg(environment: dict[str, str], runtime: str, state: str, cache: str) -> None:
    assert find_directories(environment) == Directories(Path(runtime), Path(state), Path(cache))


def test_a_folder_is_created_for_this_user_only(tmp_path: Path) -> None:
    make_private(tmp_path / "a" / "b")
    make_private(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryError, match="is not a folder"):
        make_private(tmp_path / "file")
    with pytest.raises(DirectoryError, match=r"cannot be created: (Not a directory|File exists)"):
        make_private(tmp_path / "file" / "below")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(DirectoryError, match="belongs to another user"):
        make_private(tmp_path / "theirs")
    (tmp_path / "link").symlink_to(tmp_path)
    os.chown(tmp_path / "link", 12345, 12345, follow_symlinks=False)
    with pytest.raises(DirectoryError, match="is not a folder"):
        make_private(tmp_path / "link")


def test_the_mode_of_a_new_folder_and_its_parents_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        make_private(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(umask)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "a/b/c")]
    assert modes == [0o755, 0o755, 0o700]


def test_each_reason_has_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for folder, code in (
        ("file", ExitCode.CANNOT_CREATE),
        ("file/below", ExitCode.CANNOT_CREATE),
        ("open", ExitCode.NO_PERMISSION),
        ("open/below", ExitCode.NO_PERMISSION),
    ):
        with pytest.raises(DirectoryError) as caught:
            make_private(tmp_path / folder)
        assert caught.value.code is code


def test_one_service_at_a_time_holds_a_folder_and_a_stale_lock_file_does_no_harm(tmp_path: Path) -> None:
    streams = tmp_path / "streams"
    with (
        held(streams),
        pytest.raises(DirectoryError, match=f"process {os.getpid()} saves its streams there"),
        held(streams),
    ):
        pass
    with held(streams):
        pass
    with pytest.raises(DirectoryError, match="cannot be locked: No such file"), held(tmp_path / "gone" / "streams"):
        pass


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES])
def test_a_folder_that_cannot_be_written_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(UnwritableError, match=os.strerror(number)):
        make_private(tmp_path / "a")


def test_a_lock_on_a_full_disk_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.pwrite", refuse)
    with pytest.raises(UnwritableError, match="No space left"), held(tmp_path / "streams"):
        pass


def test_a_folder_that_can_be_written_has_no_problem(tmp_path: Path) -> None:
    assert writing_problem(tmp_path / "a" / "b") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value", "reason"), [("f_flag", os.ST_RDONLY, "read-only file system"), ("f_bavail", 0, "is full")]
)
def test_a_full_or_read_only_file_system_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: int, reason: str
) -> None:
    real = os.statvfs(tmp_path)
    names = [name for name in dir(real) if name.startswith("f_")]
    fake = SimpleNamespace(**({name: getattr(real, name) for name in names} | {field: value}))
    monkeypatch.setattr("os.statvfs", lambda path: fake)
    assert reason in (writing_problem(tmp_path / "a") or "")


def test_a_file_in_the_place_of_a_folder_is_seen(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is not a folder" in (writing_problem(tmp_path / "file" / "below") or "")
