"""Commands to a running service: what a reload would change, the reload itself, and new epochs of named cameras."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from retinad.client import FeaturesRecord, Record
from retinad.daemon.cli.app import run_command
from retinad.daemon.exit_codes import ExitCode
from retinad.daemon.service.control import find_services, open_control
from retinad.pipeline.files.ownership import NotOursError

from ..records import record_of
from ..service_rig import camera, receive_until, running, subscriber, write_config

SOURCE = "synthetic:?fps=40&width=160&height=120"


def epoch_of(name: str, epoch: int) -> Callable[[Record], bool]:
    return lambda record: isinstance(record, FeaturesRecord) and (record.camera, record.epoch) == (name, epoch)


def test_a_running_service_is_asked_by_the_name_of_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = tmp_path / "run"
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(runtime))
    monkeypatch.chdir(tmp_path)

    def retinad(*arguments: str) -> tuple[int, str]:
        return run_command(arguments), capsys.readouterr().out

    config = write_config(tmp_path, camera("off", SOURCE, enabled=False) + camera("a", SOURCE) + camera("b", SOURCE))
    before, path = config.read_text(), str(config)
    with subscriber(tmp_path) as records_in, running(config) as service:
        receive_until(records_in, record_of("a", 5))
        receive_until(records_in, record_of("b", 5))

        assert retinad("renew", "c", "--config", path)[0] == ExitCode.USAGE
        assert run_command(["renew", "off", "--config", path]) == ExitCode.USAGE
        assert "off does not run: its config has enabled = false" in capsys.readouterr().err.replace("\n", " ")
        assert retinad("renew", path, "b")[0] == ExitCode.OK
        receive_until(records_in, epoch_of("b", 1))
        (line,) = (line for line in service.events() if line["event"] == "streams begin new epochs")
        assert line["cameras"] == ["b"]

        assert retinad("reload", path, "--dry-run") == (0, "nothing changes\n")
        config.write_text(f"{before}fps = 20\n")
        expected = "camera b: its source is opened again, its memory is kept (fps)\n"
        assert retinad("reload", path, "--dry-run") == (0, expected)
        assert not [line for line in service.events() if line["event"] == "reloaded"]
        assert retinad("reload", path) == (0, expected)
        receive_until(records_in, lambda record: isinstance(record, FeaturesRecord) and record.stream_epoch == 1)
        assert retinad("reload", path, "--dry-run") == (0, "nothing changes\n")
        config.write_text(f"{before}fsp = 20\n")
        assert retinad("reload", path, "--dry-run")[0] == ExitCode.CONFIG
        assert [folder.stat().st_mode & 0o077 for folder in runtime.glob("service-*")] == [0]
        assert service.stop()[0] == 0
    assert not list(runtime.glob("service-*"))
    assert run_command(["reload", path]) == ExitCode.UNAVAILABLE
    assert f"no service in {runtime} or /run/retinad runs with" in capsys.readouterr().err


def test_what_a_killed_service_left_is_no_service_and_is_removed(tmp_path: Path) -> None:
    """Its process number may belong to any other process by now."""
    with subprocess.Popen(["true"]) as ended:
        pass
    for pid in (ended.pid, os.getppid(), os.getpid()):
        (tmp_path / f"service-{pid}").mkdir()
        (tmp_path / f"service-{pid}" / "lock").touch()
        (tmp_path / f"service-{pid}" / "place.json").write_text("{}")
    environment = {"RUNTIME_DIRECTORY": str(tmp_path)}
    assert find_services(environment)[0] == []
    config = tmp_path / "config.toml"
    config.touch()
    with open_control(tmp_path, config, "", environment):
        (service,) = find_services(environment)[0]
        assert (service.pid, service.config, service.environment) == (os.getpid(), config, environment)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["config.toml", f"service-{os.getppid()}"], "a process of this number lives: it may be starting"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_nobody_else_says_which_process_gets_a_signal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who may make a runtime folder, as anyone may in /tmp, could have root end any process."""
    config = tmp_path / "config.toml"
    config.touch()
    runtime = tmp_path / "run"
    environment = {"RUNTIME_DIRECTORY": str(runtime)}
    runtime.mkdir()
    with open_control(runtime, config, "", environment) as control:
        os.chown(control.folder, 12345, 12345)
        assert find_services(environment)[0] == []
        os.chown(runtime, 12345, 12345)
        with pytest.raises(NotOursError, match=f"{runtime} belongs to another user, uid 12345"):
            find_services(environment)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RUNTIME_DIRECTORY", str(runtime))
            assert run_command(["reload", str(config)]) == ExitCode.NO_PERMISSION
        os.chown(runtime, 0, 0)
    assert "belongs to another user" in capsys.readouterr().err


def test_a_command_without_a_service_says_where_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "none"))
    for command in (["reload", "x.toml"], ["renew", "a", "-c", "x.toml"], ["renew", "-c", "x.toml"]):
        assert run_command(command) == ExitCode.UNAVAILABLE
        assert "none or /run/retinad runs with x.toml" in capsys.readouterr().err
