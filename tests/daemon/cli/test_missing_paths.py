"""`check` names local sources that are missing, without a secret, and still succeeds."""

from pathlib import Path

import pytest

from retinad.daemon.cli.app import run_command
from retinad.daemon.cli.missing_paths import missing_paths
from retinad.daemon.exit_codes import ExitCode
from retinad.pipeline.config import CameraConfig


@pytest.mark.parametrize("source", ["synthetic:", "0", "/dev/video63", "rtsp://h/x", "{folder}", "{folder}/a*.mp4"])
def test_sources_that_exist_or_that_only_opening_can_check_are_not_named(tmp_path: Path, source: str) -> None:
    for name in ("a.mp4", "b.png"):
        (tmp_path / name).touch()
    assert list(missing_paths([CameraConfig("a", source.format(folder=tmp_path))])) == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("/nope/walk.mp4", "camera a: there is no file or folder /nope/walk.mp4"),
        ("/nope/*.png", "camera a: no file matches /nope/*.png"),
        ("rtsp//h/x", "camera a: there is no file or folder rtsp//h/x (an address begins with rtsp://)"),
        ("RTSP:/u:s3cret@h/x", "camera a: there is no file or folder RTSP:***@h/x (an address begins with rtsp://)"),
    ],
)
def test_a_missing_source_is_named(source: str, said: str) -> None:
    assert list(missing_paths([CameraConfig("a", source)])) == [said]


def test_check_notes_it_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[model]\ndevice = "cpu"\n[[camera]]\nname = "a"\nsource = "rtsp//h"\n')
    assert run_command(["check", str(config)]) == ExitCode.OK
    printed = capsys.readouterr()
    assert "note: camera a: there is no file or folder rtsp//h" in printed.err
    assert "note:" not in printed.out
