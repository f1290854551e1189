"""`retinad keygen`: key files that the service and its subscribers can use, with modes that fit, never replaced."""

import os
import stat
from pathlib import Path

import pytest
import zmq.auth

from retinad.client.curve_keys import load_keys
from retinad.daemon.cli.app import run_command
from retinad.daemon.exit_codes import ExitCode


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_public_keys_are_readable_by_all_and_secret_keys_by_their_owner(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert run_command(["keygen", "server", "robot", "--dir", str(tmp_path / "keys")]) == ExitCode.OK
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "keys").iterdir()}
    assert modes == {"server.key": 0o644, "server.key_secret": 0o600, "robot.key": 0o644, "robot.key_secret": 0o600}


def test_the_files_are_those_of_zmq_and_fit_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["keygen", "server", "--dir", str(tmp_path)])
    output = capsys.readouterr().out
    public, secret = (load_keys(tmp_path / name) for name in ("server.key", "server.key_secret"))
    assert zmq.auth.load_certificate(tmp_path / "server.key_secret") == (public.public_key, secret.secret_key)
    assert zmq.auth.load_certificate(tmp_path / "server.key") == (public.public_key, None)
    assert zmq.curve_public(secret.secret_key) == public.public_key == secret.public_key
    assert secret.secret_key.decode() not in output
    assert str(tmp_path / "server.key_secret") in output


@pytest.mark.parametrize("existing", ["robot.key", "robot.key_secret"])
def test_an_existing_key_is_never_replaced(tmp_path: Path, existing: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / existing).write_text("precious")
    assert run_command(["keygen", "robot", "--dir", str(tmp_path)]) == ExitCode.CANNOT_CREATE
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(existing, "precious")]
    assert f"{tmp_path}/{existing}: the file exists, and may be in use" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run_command(["keygen", "robot", "--dir", str(tmp_path / "file" / "keys")]) == ExitCode.CANNOT_CREATE
    assert str(tmp_path / "file" / "keys") in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../robot", "", ".hidden", "a/b", "x" * 65, "ü"])
def test_a_name_is_a_plain_file_name(tmp_path: Path, name: str) -> None:
    assert run_command(["keygen", name, "--dir", str(tmp_path)]) == ExitCode.USAGE
    assert not list(tmp_path.iterdir())
