"""Each command refuses a password that is not percent-encoded, names its place, and shows none of it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinad.daemon.cli.app import run_command
from retinad.daemon.cli.probe import CameraFinding
from retinad.daemon.config.load import ConfigError, load_config
from retinad.daemon.exit_codes import ExitCode
from retinad.pipeline.config import CameraConfig
from retinad.pipeline.errors import SourceError, SourceFault

PIECE = "QZ37"
"""A piece of a password that is in no word of an error."""
HOW = "@ is %40, / is %2F, ? is %3F, # is %23"

WriteConfig = Callable[[str], Path]


@pytest.fixture
def write_config(tmp_path: Path) -> WriteConfig:
    def write(source: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(f'[[camera]]\nname = "a"\nsource = {json.dumps(source)}\n')
        return path

    return write


@pytest.mark.parametrize(
    "password", [f"pa@{PIECE}/w", f"pa/{PIECE}", f"12/{PIECE}", f"pa@{PIECE}", f"{PIECE}#w", f"{PIECE}?w@x"]
)
@pytest.mark.parametrize("command", [["check"], ["cameras"], ["run", "--config"]])
def test_commands_name_its_place_and_how_to_write_it(
    write_config: WriteConfig, capfd: pytest.CaptureFixture[str], command: list[str], password: str
) -> None:
    config = write_config(f"rtsp://user:{password}@192.0.2.7/stream")
    assert run_command([*command, str(config)]) == ExitCode.CONFIG
    printed = "".join(capfd.readouterr())
    assert f"{config}:3:" in printed
    assert "camera[0].source" in printed
    assert HOW in printed
    assert PIECE not in printed


def test_extract_refuses_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = f"http://user:pa@{PIECE}/w@192.0.2.7/walk.mp4"
    assert run_command(["extract", source, "-o", str(tmp_path / "out"), "--preset", "tiny"]) == ExitCode.NO_INPUT
    printed = "".join(capfd.readouterr())
    assert HOW in printed
    assert PIECE not in printed


@pytest.mark.parametrize("where", ["credential", "environment"])
def test_it_is_refused_wherever_it_comes_from(write_config: WriteConfig, tmp_path: Path, where: str) -> None:
    source = f"rtsp://user:pa@{PIECE}/w@192.0.2.7/stream"
    (tmp_path / "door").write_text(source)
    config = write_config("credential:door" if where == "credential" else "synthetic:")
    override = {} if where == "credential" else {"RETINAD_CAMERA__A__SOURCE": source}
    with pytest.raises(ConfigError, match=re.escape(HOW)) as caught:
        load_config(config, {"CREDENTIALS_DIRECTORY": str(tmp_path)} | override)
    assert PIECE not in str(caught.value) + repr(caught.value.problems)


_WORDS = st.text("QXZ0987", min_size=4, max_size=6)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(_WORDS, min_size=1, max_size=4), separators=st.text("@:/?#[]", min_size=8, max_size=8))
def test_no_piece_of_any_password_is_in_the_output_of_check_and_cameras(
    write_config: WriteConfig, words: list[str], separators: str
) -> None:
    password = "".join(map("{}{}".format, words, separators))
    source = f"rtsp://{separators[4:6]}user:{password}@192.0.2.7/stream"
    shown = []
    try:
        load_config(write_config(source), {})
    except ConfigError as error:
        shown.append(str(error))
    for word in words:  # as if FFmpeg had taken it for the host
        reason = f"{source} cannot be opened: its host name is not known [Failed to resolve hostname {word}: error]"
        outcome = SourceError(SourceFault.MISSING, reason)
        shown.append(str(CameraFinding(CameraConfig("a", source), outcome)))
    assert not [word for word in words for text in shown if word in text]
