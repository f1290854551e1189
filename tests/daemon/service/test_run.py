"""The start of the service: what is not essential does not stop it, and the log says what is missing."""

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from retinad.daemon.config.directories import DirectoryError, UnwritableError
from retinad.daemon.config.load import ServiceConfig, load_config
from retinad.daemon.exit_codes import ExitCode
from retinad.daemon.service import run


@pytest.fixture
def config(tmp_path: Path) -> ServiceConfig:
    path = tmp_path / "config.toml"
    path.write_text('[[camera]]\nname = "a"\nsource = "synthetic:"\n[model]\npreset = "tiny"\ndevice = "cpu"\n')
    return replace(load_config(path, {}), state_dir=tmp_path / "state", keep_state=True)


def test_the_folder_of_kept_memories_is_made(config: ServiceConfig) -> None:
    with ExitStack() as stack:
        assert run._with_states(config, stack) is config
        assert (config.state_dir / "streams").is_dir()


def test_a_service_that_keeps_nothing_needs_no_folder(config: ServiceConfig) -> None:
    with ExitStack() as stack:
        run._with_states(replace(config, keep_state=False), stack)
    assert not config.state_dir.exists()


def test_a_folder_that_cannot_be_written_is_no_reason_not_to_run(
    config: ServiceConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(folder: Path) -> None:
        raise UnwritableError(ExitCode.CANNOT_CREATE, f"the folder {folder} cannot be created: Read-only file system")

    monkeypatch.setattr(run, "make_private", refuse)
    with ExitStack() as stack, caplog.at_level(logging.WARNING, "retinad"):
        started = run._with_states(config, stack)
    assert started == replace(config, keep_state=False)
    assert "the streams' memories are not kept" in caplog.text
    assert "Read-only file system" in caplog.text


def test_a_folder_of_another_user_is_a_reason(config: ServiceConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise DirectoryError(ExitCode.NO_PERMISSION, f"the folder {folder} belongs to another user")

    monkeypatch.setattr(run, "make_private", refuse)
    with ExitStack() as stack, pytest.raises(DirectoryError):
        run._with_states(config, stack)
