"""The command line: exit codes, the packages that each command needs, and complete errors without secrets."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

from retinad.client.connection import new_key_pair
from retinad.client.curve_keys import write_keys
from retinad.daemon.cli.app import COMMANDS, SERVER_COMMANDS, python_problem, run_command
from retinad.daemon.config.directories import held
from retinad.daemon.exit_codes import ExitCode
from retinad.pipeline.model.presets import PRESETS
from retinad.pipeline.model.weight_paths import ZIP_START

from ...deadlines import scaled
from ..service_rig import write_frames

SECRET = "s3cret"
CAMERA = '[[camera]]\nname = "a"\nsource = "synthetic:"\n'
SERVER_PARTS = ("torch", "anyio", "structlog", "cv2", "safetensors", "triton")
"""Packages that only the extra `server` installs (typer installs pydantic)."""

HEAVY_PARTS = ("torch", "anyio", "cv2", "safetensors")
"""Packages that take long to import."""

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


def retinad(*arguments: str, without: Sequence[str] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in its own process, as if some libraries were not installed."""
    script = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in without)
    script += "from retinad.daemon.cli.app import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "NOTIFY_SOCKET"} | environment,
    )


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config with an endpoint that no other test uses."""
    path = tmp_path / "config.toml"
    path.write_text(f'{CAMERA}[publish]\nendpoints = ["ipc://{tmp_path}/features.sock"]\n')
    return path


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    places = {"RUNTIME": "run", "STATE": "state", "CACHE": "cache"}
    return {f"{kind}_DIRECTORY": str(tmp_path / name) for kind, name in places.items()}


# Exit codes


def test_the_process_ends_when_its_work_is_done_whatever_libraries_do_at_exit() -> None:
    script = "import atexit, time\natexit.register(time.sleep, 100)\nfrom retinad.daemon.cli.app import main\nmain()"
    done = subprocess.run([sys.executable, "-c", script, "version"], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0
    assert done.stdout.startswith("retinad ")


@pytest.mark.parametrize(
    "text",
    [
        f'{CAMERA}mode = "alive"\n',
        f'{CAMERA}[model]\npreset = "tny"\n',
        f'{CAMERA}[model]\npreset = "tiny"\nlayers = [9]\n',
        '[[camera]]\nname = "a"\nsource = "foo://x"\n[model]\npreset = "tiny"\n',
    ],
)
def test_plain_mistakes_are_found_without_torch(tmp_path: Path, text: str) -> None:
    """torch takes a second to import, more from a cold disk."""
    path = tmp_path / "config.toml"
    path.write_text(text)
    done = retinad("check", str(path), without=HEAVY_PARTS)
    assert (done.returncode, "expected" in done.stderr or "not known" in done.stderr) == (ExitCode.CONFIG, True)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], ExitCode.USAGE),
        (["nope"], ExitCode.USAGE),
        (["check", "a", "b"], ExitCode.USAGE),
        (["check", "/nope.toml"], ExitCode.CONFIG),
        (["cameras", "/nope.toml"], ExitCode.CONFIG),
        (["run", "--nope"], ExitCode.USAGE),
        (["subscribe"], ExitCode.USAGE),
        (["subscribe", "tcp://127.0.0.1:1", "--count", "0"], ExitCode.USAGE),
        (["subscribe", "tcp://127.0.0.1:1", "--count", "x"], ExitCode.USAGE),
        (["subscribe", "tcp://127.0.0.1:1", "--kind", "nope"], ExitCode.USAGE),
        (["subscribe", "udp://127.0.0.1:1"], ExitCode.USAGE),
        (["subscribe", "tcp://127.0.0.1:1", "--client-key", "x"], ExitCode.USAGE),
        (["subscribe", "tcp://127.0.0.1:1", "--client-key", "/no", "--server-key", "/no"], ExitCode.USAGE),
        (["subscribe", "tcp://127.0.0.1:1", "--timeout", "0.1", "--camera", "a", "--json"], ExitCode.UNAVAILABLE),
        (["--help"], ExitCode.OK),
        (["run", "--help"], ExitCode.OK),
        (["extract", "--help"], ExitCode.OK),
        (["extract", "x"], ExitCode.USAGE),
        (["convert", "--help"], ExitCode.OK),
        (["convert", "x", "-o", "y.safetensors"], ExitCode.USAGE),
        (["convert", "x", "-o", "y.safetensors", "--mixers", "kda", "--half-life", "1e308"], ExitCode.USAGE),
        (["extract", "synthetic:", "-o", "y", "--run-frames", "9" * 5000], ExitCode.USAGE),
        (["version"], ExitCode.OK),
        (["schema"], ExitCode.OK),
    ],
)
def test_each_outcome_has_its_exit_code(
    arguments: list[str], code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments) == code


@pytest.mark.parametrize("command", sorted(SERVER_COMMANDS))
def test_on_an_older_python_the_servers_commands_say_so(command: str) -> None:
    problem = python_problem(["--x", command, "config.toml"], (3, 10))
    assert problem is not None
    assert problem.startswith(f"{command} needs Python 3.11 or newer, but this is 3.10")
    assert python_problem([command], (3, 11)) is None


def test_a_subscribers_commands_run_on_an_older_python() -> None:
    names = {"subscribe", "locate", "trajectory", "cloud", "keygen", "schema", "version"}
    assert {command.__name__ for command in COMMANDS} - SERVER_COMMANDS == names
    for command in (*sorted(names), "--help"):
        assert python_problem([command], (3, 10)) is None


# The help


@pytest.fixture
def help_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The help of a command as one line of text."""
    monkeypatch.setenv("COLUMNS", "120")

    def run_help(*command: str) -> str:
        assert run_command([*command, "--help"]) == ExitCode.OK
        return " ".join(capsys.readouterr().out.replace("│", " ").split())

    return run_help


def test_tables_of_the_config_are_named_in_the_help(help_of: Callable[..., str]) -> None:
    """In square brackets, which could be taken for markup."""
    assert "only [model] and [stream] are used" in help_of("extract")


def test_the_help_lists_every_command_and_every_exit_code(help_of: Callable[..., str]) -> None:
    text = help_of()
    for command in COMMANDS:
        assert f" {command.__name__} " in text
    for code in ExitCode:
        assert f"{code.value} {code.meaning}" in text


@pytest.mark.parametrize("command", [command.__name__ for command in COMMANDS])
def test_switches_are_shown_without_a_value(help_of: Callable[..., str], command: str) -> None:
    text = help_of(command)
    assert "--help Show this message" in text
    assert "<bool>" not in text


@pytest.mark.parametrize("command", ["bench", "extract"])
def test_the_help_lists_every_preset(help_of: Callable[..., str], command: str) -> None:
    assert all(name in help_of(command) for name in PRESETS)


TAKE_A_CONFIG = {
    "run": (),
    "check": (),
    "cameras": (),
    "reload": (),
    "bench": (),
    "renew": (),
    "extract": ("synthetic:", "-o", "out"),
    "convert": ("w.pt", "-o", "y.safetensors", "--mixers", "kda"),
}


@pytest.mark.parametrize("command", TAKE_A_CONFIG)
def test_every_command_takes_its_config_as_an_argument_and_as_an_option(
    command: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("retinad.daemon.service.run.run_service", refuse_config)
    others = TAKE_A_CONFIG[command]
    named = [*others[:1], "./none.toml", *others[1:]]
    spellings = (named, [*others, "--config", "none.toml"], [*named, "-c", f"{tmp_path}/none.toml"])
    for arguments in spellings:
        code = run_command([command, *arguments])
        assert code == (ExitCode.UNAVAILABLE if command in ("renew", "reload") else ExitCode.CONFIG)
        assert "none.toml" in capfd.readouterr().err
    assert run_command([command, *named, "--config", "other.toml"]) == ExitCode.USAGE
    assert "the config file is given twice" in capfd.readouterr().err


def refuse_config(path: Path, stack: object) -> ExitCode:
    """In place of the service, whose log takes over the process's output."""
    sys.stderr.write(f"{path}\n")
    return ExitCode.CONFIG


@pytest.mark.parametrize("command", TAKE_A_CONFIG)
def test_the_help_shows_one_way_to_name_the_config(command: str, help_of: Callable[..., str]) -> None:
    text = help_of(command)
    assert ("--config" in text) != ("CONFIG" in text.replace("--config", ""))


def test_a_conversion_never_overwrites_its_own_source(tmp_path: Path) -> None:
    source = tmp_path / "w.safetensors"
    source.write_bytes(b"the only copy")
    (tmp_path / "link.safetensors").symlink_to(source)
    for target in (source, tmp_path / "link.safetensors"):
        assert run_command(["convert", str(source), "--mixers", "kda", "-o", str(target)]) == ExitCode.USAGE
    assert source.read_bytes() == b"the only copy"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["config"], ["subscribe", "--help"], ["cloud", "--help"], ["version"], ["schema"]],
)
def test_a_subscriber_needs_none_of_the_servers_parts(arguments: list[str]) -> None:
    result = retinad(*arguments, without=SERVER_PARTS)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "part"),
    [
        (["run", "--config"], "structlog"),
        (["run", "--config"], "anyio"),
        (["check"], "torch"),
        (["cameras"], "anyio"),
    ],
)
def test_a_command_whose_packages_are_missing_names_what_to_install(
    command: list[str], part: str, config: Path
) -> None:
    result = retinad(*command, str(config), without=[part])
    assert result.returncode == ExitCode.UNAVAILABLE
    assert f"needs the server's packages ({part} is missing)" in result.stderr
    assert "pip install '.[server]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_module_of_retinad_itself_is_an_internal_error() -> None:
    result = retinad("check", "x", without=["retinad.daemon.config.show"])
    assert result.returncode == ExitCode.FAULT


# check


def test_check_prints_the_resolved_config(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINAD_PUBLISH__BUFFER_MB", "7")
    assert run_command(["check", str(config)]) == ExitCode.OK
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "buffer_mb = 7\n" in printed.out
    assert 'name = "a"' in printed.out


def test_check_prints_every_problem_with_its_place(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(f"[publish]\nbufer_mb = 1\n[[camera]]\nsource = 'rtsp://u:{SECRET}@h/x'\nfps = true\n")
    monkeypatch.setenv("RETINAD_MODEL__SED", "1")
    assert run_command(["check", str(config)]) == ExitCode.CONFIG
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "environment: RETINAD_MODEL__SED: names no key of the config (did you mean `RETINAD_MODEL__SEED`?)",
        f"{config}:2:1: publish.bufer_mb: unknown key (did you mean `buffer_mb`?)",
        f"{config}:3:1: camera[0].name: required key is missing",
        f"{config}:5:1: camera[0].fps: expected a number, got true",
    ]


def test_check_reports_a_missing_device(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINAD_MODEL__DEVICE", "cuda:77")
    assert run_command(["check", str(config)]) == ExitCode.UNAVAILABLE
    assert "cuda:77" in capsys.readouterr().err


def test_check_and_run_refuse_the_same_settings_that_cannot_run(config: Path) -> None:
    config.write_text(config.read_text() + '[model]\ndevice = "cpu"\nexecution = "captured"\n')
    for command in ("check", "run"):
        result = retinad(command, str(config))
        assert result.returncode == ExitCode.CONFIG
        assert (
            "model.execution: execution 'captured' is not possible: fused kernels need attention = 'triton'"
            in result.stderr
        )


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root reads everything")
def test_check_says_that_a_checkpoint_may_not_be_read(config: Path, tmp_path: Path) -> None:
    weights = tmp_path / "w.safetensors"
    weights.touch(0)
    config.write_text(f'{config.read_text()}[model]\ndevice = "cpu"\ncheckpoint = "{weights}"\n')
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*drop, sys.executable, "-m", "retinad.daemon", "check", str(config)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert result.returncode == ExitCode.CONFIG
    assert f"model.checkpoint: it may not be read by this user (uid {os.geteuid()})" in result.stderr


def test_a_checkpoint_that_is_none_ends_every_command_with_config(
    config: Path, folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trying again cannot help; `run` ended with 69, which systemd tries again."""
    weights = tmp_path / "w.pt"
    weights.write_text("version https://git-lfs.github.com/spec/v1\n")
    config.write_text(f'{config.read_text()}[model]\npreset = "tiny"\ndevice = "cpu"\ncheckpoint = "{weights}"\n')
    assert run_command(["check", str(config)]) == ExitCode.CONFIG
    assert "model.checkpoint: it is a git-lfs pointer" in capsys.readouterr().err
    weights.write_bytes(ZIP_START + b"\xff" * 100)  # only reading it can tell
    for command in ("check", "run"):
        result = retinad(command, str(config), **folders)
        assert (result.returncode, f"checkpoint {weights} cannot be read" in result.stderr) == (ExitCode.CONFIG, True)


def test_check_names_the_weights_that_a_checkpoint_lacks(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.numpy import save_file

    save_file({"some.weight": np.zeros(4, np.float32)}, tmp_path / "w.safetensors")
    table = f'[model]\npreset = "tiny"\ndevice = "cpu"\ncheckpoint = "{tmp_path}/w.safetensors"\n'
    config.write_text(config.read_text() + table)
    assert run_command(["check", str(config)]) == ExitCode.CONFIG
    assert "some.weight" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("w.pt", b"", "the file is empty"),
        ("w.safetensors", b"", "the file is empty"),
        ("w.safetensors", bytes(1000), "it begins with zeros"),
        ("w.safetensors.index.json", bytes(1000), "it begins with zeros"),
        ("w.safetensors", b"x" * 1000, "it is no safetensors file"),
        (
            "w.safetensors",
            b"\x02" + bytes(7) + b"[]",
            "it is no safetensors file: its header is not JSON",
        ),
        ("w.pt", b"x" * 1000, "it was not written by torch.save"),
        ("w.txt", b"x" * 1000, "expected a file whose name ends in"),
    ],
)
def test_check_refuses_a_file_that_holds_no_weights(
    name: str, content: bytes, reason: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    config.write_text(f'{config.read_text()}[model]\ndevice = "cpu"\ncheckpoint = "{tmp_path / name}"\n')
    assert run_command(["check", str(config)]) == ExitCode.CONFIG
    assert f"model.checkpoint: {reason}" in capsys.readouterr().err


def test_check_finds_a_download_that_stopped(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "w.safetensors"
    save_file({"some.weight": np.zeros(400, np.float32)}, path)
    size = path.stat().st_size
    os.truncate(path, size - 4)
    config.write_text(f'{config.read_text()}[model]\ndevice = "cpu"\ncheckpoint = "{path}"\n')
    assert run_command(["check", str(config)]) == ExitCode.CONFIG
    assert f"it was cut off: it has {size - 4} of {size} bytes" in capsys.readouterr().err


@pytest.mark.parametrize("endpoint", ["tcp://192.0.2.1:5555", "tcp://nosuchcard:5555"])
def test_check_and_run_refuse_an_address_that_this_machine_lacks(
    endpoint: str, config: Path, folders: dict[str, str]
) -> None:
    config.write_text(f'{CAMERA}[publish]\nendpoints = ["{endpoint}"]\nallow_plaintext = true\n')
    for command in ("run", "check"):
        result = retinad(command, str(config), **folders)
        assert (result.returncode, "this machine has no such address" in result.stderr) == (ExitCode.UNAVAILABLE, True)


def test_a_conversion_accepts_the_config_of_a_machine_with_a_gpu(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text('[model]\npreset = "tiny"\ndevice = "cuda:7"\nattention = "triton"\nexecution = "captured"\n')
    arguments = [f"{config}.pt", "--mixers", "kda", "-o", f"{config}.safetensors", "--config", str(config)]
    assert run_command(["convert", *arguments]) == ExitCode.CONFIG
    assert "config.toml.pt: No such file" in capsys.readouterr().err


# cameras


def test_cameras_describes_each_source(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = f'[[camera]]\nname = "b"\nsource = "{tmp_path}/nope.mp4"\n'
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    refused = f'[[camera]]\nname = "c"\nsource = "http://u:{SECRET}@127.0.0.1:{port}/x?token={SECRET}"\n'
    config.write_text(f"{CAMERA}fps = 2\n{bad}{refused}")
    assert run_command(["cameras", str(config)]) == ExitCode.NO_INPUT
    printed = capsys.readouterr()
    assert SECRET not in printed.out + printed.err
    heads = [line for line in printed.out.splitlines() if not line.startswith(" ")]
    assert heads[0] == "a: 640x480, 30 frames/s (limited to 2 by the key fps), by synthetic"
    assert heads[1].startswith("b: missing: ")
    assert heads[2].startswith("c: refused: ")


def test_cameras_says_how_fast_a_folder_is_read(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has no rate of its own."""
    write_frames(tmp_path / "one", 1)
    write_frames(tmp_path / "two", 2)
    folders = [f'[[camera]]\nname = "{name}"\nsource = "{tmp_path}/{name}"\n' for name in ("one", "two")]
    config.write_text(folders[0] + "fps = 3\n" + folders[1])
    assert run_command(["cameras", str(config)]) == ExitCode.OK
    heads = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert heads == [
        "one: 160x120, 3 frames/s, 1 frame, by images",
        "two: 160x120, 30 frames/s, 2 frames, by images",
    ]


# What cannot be read or written


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_this_user_may_not_read_is_no_error_of_the_command_line(command: Callable[..., None]) -> None:
    """Its reader reports it: a config with the exit code of a config."""
    files = [hint for hint in get_type_hints(command, include_extras=True).values() if Path in get_args(hint)]
    files += [hint for hint in get_type_hints(command, include_extras=True).values() if Path | None in get_args(hint)]
    assert [hint for hint in files if hint.__metadata__[0].readable] == []


@pytest.mark.parametrize("output", ["none/x.json", "folder"])
def test_the_report_of_a_benchmark_is_tried_before_the_measurement(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    (tmp_path / "folder").mkdir()
    began = time.monotonic()
    assert run_command(["bench", str(config), "--json", str(tmp_path / output)]) == ExitCode.CANNOT_CREATE
    assert time.monotonic() - began < 5
    assert f"{tmp_path / output} cannot be written" in capsys.readouterr().err


def test_the_output_of_a_conversion_is_tried_before_the_weights_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "none" / "x.safetensors"
    assert run_command(["convert", "/nope", "--mixers", "kda", "-o", str(out)]) == ExitCode.CANNOT_CREATE
    assert f"{out} cannot be written: No such file" in capsys.readouterr().err


def test_the_folder_of_an_extraction_is_tried_before_the_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinad.daemon.extract.job.writing_problem", lambda folder: "the disk is full")
    arguments = ["extract", "synthetic:?frames=5", "--preset", "tiny", "-o", str(tmp_path / "out")]
    assert run_command(arguments) == ExitCode.CANNOT_CREATE
    printed = capsys.readouterr().err
    assert f"{tmp_path / 'out'} cannot be written: the disk is full" in printed
    assert "loading" not in printed


def test_check_says_that_memories_will_not_be_kept(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinad.daemon.cli.check.writing_problem", lambda folder: f"the disk of {folder} is full")
    text = config.read_text()
    config.write_text(f'{text}[service]\nkeep_state = true\nstate_dir = "{tmp_path}/state"\n')
    assert run_command(["check", str(config)]) == ExitCode.OK
    assert "note: the streams' memories will not be kept" in capsys.readouterr().err
    (tmp_path / "file").touch()
    config.write_text(f'{text}[service]\nstate_dir = "{tmp_path}/file/state"\n')
    assert run_command(["check", str(config)]) == ExitCode.OK
    assert capsys.readouterr().err == ""


# schema, version


def test_versions_are_printed_without_importing_anything(capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["version"])
    parts = dict(line.split(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert next(iter(parts)) == "retinad"
    assert {"python", "pyzmq", "numpy", "msgspec"} <= parts.keys()


# run


def log_of(result: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    """The log; fails if a line is not a JSON object, or if anything went to standard output."""
    assert result.stdout == ""
    return [json.loads(line) for line in result.stderr.splitlines()]


def test_run_logs_the_problems_of_a_wrong_config_as_events(config: Path, folders: dict[str, str]) -> None:
    config.write_text(f"[publish]\nbuffer_mb = 0\n[[camera]]\nsource = 'rtsp://u:{SECRET}@h/x'\n")
    result = retinad("run", "--config", str(config), **folders)
    assert result.returncode == ExitCode.CONFIG
    assert SECRET not in result.stderr
    log = log_of(result)
    assert [(line["level"], line["key"], line["line"]) for line in log] == [
        ("error", "publish.buffer_mb", 2),
        ("error", "camera[0].name", 3),
    ]


@pytest.mark.parametrize("content", [None, "[publish\n"])
def test_run_refuses_a_missing_or_broken_config(content: str | None, tmp_path: Path, folders: dict[str, str]) -> None:
    path = tmp_path / "config.toml"
    if content is not None:
        path.write_text(content)
    result = retinad("run", "--config", str(path), **folders)
    assert result.returncode == ExitCode.CONFIG
    assert str(path) in str(log_of(result)[-1]["event"])
    assert None not in log_of(result)[-1].values()
    assert log_of(result)[-1].get("key") != ""


def test_run_names_a_port_in_use_and_ends_with_unavailable(config: Path, folders: dict[str, str]) -> None:
    """Before torch is imported, which alone takes seconds; without it the command takes half a second."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        result = retinad(
            "run", "-c", str(config), without=HEAVY_PARTS, RETINAD_PUBLISH__ENDPOINTS=f'["{endpoint}"]', **folders
        )
    assert result.returncode == ExitCode.UNAVAILABLE
    assert any(endpoint in str(line["event"]) for line in log_of(result))


def test_run_refuses_a_runtime_folder_that_is_a_file(config: Path, folders: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "run").write_text("not a folder")
    result = retinad("run", "-c", str(config), **folders)
    assert result.returncode == ExitCode.CANNOT_CREATE
    assert "is not a folder" in str(log_of(result)[-1]["event"])


def test_check_finds_one_endpoint_that_is_spelt_in_two_ways(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Binding would fail, and blame another process."""
    config.write_text(f'{CAMERA}[publish]\nendpoints = ["tcp://127.0.0.1:5555", "tcp://localhost:5555"]\n')
    assert run_command(["check", str(config)]) == ExitCode.CONFIG
    error = capsys.readouterr().err
    assert "tcp://localhost:5555 and tcp://127.0.0.1:5555 are the same socket" in error
    config.write_text(f'{CAMERA}[publish]\nendpoints = ["ipc://@one", "ipc://@one"]\n')
    assert run_command(["check", str(config)]) == ExitCode.CONFIG
    assert "this endpoint is listed twice" in capsys.readouterr().err


@needs_root
@pytest.mark.parametrize("place", ["run", "state", "cache"])
def test_run_takes_no_folder_of_another_user(place: str, config: Path, folders: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / place).mkdir()
    os.chown(tmp_path / place, 12345, 12345)
    for command in ("run", "check"):
        result = retinad(command, str(config), **folders, RETINAD_SERVICE__KEEP_STATE="true")  # else no state is used
        assert result.returncode == ExitCode.NO_PERMISSION
        assert f"{tmp_path / place} belongs to another user, uid 12345" in result.stderr


@pytest.mark.parametrize("command", ["run", "check"])
def test_run_and_check_refuse_a_state_folder_that_cannot_be_made(
    command: str, config: Path, folders: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("not a folder")
    result = retinad(command, str(config), **folders, RETINAD_SERVICE__KEEP_STATE="true")
    assert (result.returncode, f"{tmp_path}/state is not a folder" in result.stderr) == (ExitCode.CANNOT_CREATE, True)


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize("place", ["server.key_secret", "authorized"])
def test_run_and_check_refuse_keys_that_others_can_change(
    command: str, place: str, config: Path, folders: dict[str, str], tmp_path: Path
) -> None:
    write_keys(tmp_path, "server", *new_key_pair())
    (tmp_path / "authorized").mkdir()
    curve = f'server_secret_key_file = "{tmp_path}/server.key_secret"\nauthorized_keys_dir = "{tmp_path}/authorized"\n'
    config.write_text(f"{config.read_text()}[publish.curve]\n{curve}")
    (tmp_path / place).chmod(0o777)
    result = retinad(command, str(config), **folders)
    assert (result.returncode, f"chmod go-w {tmp_path}/{place}" in result.stderr) == (ExitCode.NO_PERMISSION, True)


def test_run_reads_its_config_once(config: Path, folders: dict[str, str], tmp_path: Path) -> None:
    """From a pipe, as `run --config <(...)` gives it, nothing is left for a second reader."""
    (tmp_path / "state").write_text("not a folder")  # found after the config is loaded
    result = subprocess.run(
        [sys.executable, "-m", "retinad.daemon", "run", "--config", "/dev/stdin"],
        input=f"{config.read_text()}[service]\nkeep_state = true\n",
        capture_output=True,
        text=True,
        timeout=scaled(50),
        check=False,
        env=os.environ | folders,
    )
    assert (result.returncode, f"{tmp_path}/state is not a folder" in result.stderr) == (ExitCode.CANNOT_CREATE, True)


@needs_root
def test_run_takes_no_lock_of_another_user(config: Path, folders: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "features.sock.lock").touch()
    os.chown(tmp_path / "features.sock.lock", 12345, 12345)
    result = retinad("run", "-c", str(config), **folders)
    assert result.returncode == ExitCode.NO_PERMISSION
    assert "features.sock.lock belongs to another user, uid 12345" in str(log_of(result)[-1]["event"])


@pytest.mark.parametrize("command", ["run", "extract"])
def test_no_folder_for_temporary_files_is_a_plain_error(
    command: str, config: Path, folders: dict[str, str], tmp_path: Path
) -> None:
    """A container whose file system is read-only, for example."""
    (tmp_path / "cache").write_text("not a folder")
    script = "import tempfile\ndef fail(**options): raise FileNotFoundError(2, 'No usable temporary directory found')\n"
    script += "tempfile.TemporaryDirectory = fail\nfrom retinad.daemon.cli.app import main\nmain()"
    arguments = ["run", "-c", str(config)] if command == "run" else ["extract", "synthetic:", "-o", f"{tmp_path}/out"]
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env=os.environ | folders,
    )
    assert result.returncode == ExitCode.CANNOT_CREATE
    assert "no folder for temporary files" in result.stderr
    assert "set TMPDIR" in result.stderr


def test_run_leaves_the_saved_streams_of_another_service_alone(
    config: Path, folders: dict[str, str], tmp_path: Path
) -> None:
    """Otherwise the second one would silently replace the files of the first."""
    streams = tmp_path / "state" / "streams"
    streams.mkdir(parents=True)
    with held(streams):
        result = retinad("run", "-c", str(config), RETINAD_SERVICE__KEEP_STATE="true", **folders)
    assert result.returncode == ExitCode.UNAVAILABLE
    assert f"process {os.getpid()} saves its streams there" in str(log_of(result)[-1]["event"])


def test_an_unforeseen_error_is_one_event_with_its_traceback(folders: dict[str, str], config: Path) -> None:
    script = f"""if True:
        import retinad.daemon.config.load
        from retinad.daemon.cli.app import main
        def fail(path, env=None): raise ZeroDivisionError("rtsp://u:{SECRET}@h")
        retinad.daemon.config.load.load_config = fail
        main()
    """
    command = [sys.executable, "-c", script, "run", "-c", str(config)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert result.returncode == ExitCode.FAULT
    (line,) = log_of(result)
    assert (line["level"], line["event"]) == ("critical", "internal error")
    assert "ZeroDivisionError: rtsp://***@h" in str(line["exception"])
    assert SECRET not in str(line["exception"]).replace(
        f"u:{SECRET}@h", ""
    )  # the script's own text is in the traceback


def test_run_reveals_no_secret_stops_at_once_and_logs_only_events(folders: dict[str, str], config: Path) -> None:
    """With an unreachable camera, native errors and a stop, the whole log is JSON, and the password is nowhere."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    source = f"rtsp://admin:{SECRET}@127.0.0.1:{port}/x?password={SECRET}2"
    config.write_text(f'{config.read_text()}[[camera]]\nname = "b"\nsource = "{source}"\n')
    command = [sys.executable, "-m", "retinad.daemon", "run", "--config", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | folders)
    assert process.stderr is not None
    lines: list[str] = []
    while not any("camera retrying" in line for line in lines):
        lines.append(process.stderr.readline())
        assert lines[-1], lines
    assert SECRET not in Path(f"/proc/{process.pid}/cmdline").read_text()
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=20)[1]
    assert time.monotonic() - began < 3.0
    assert process.returncode == ExitCode.OK
    log = "".join(lines) + rest
    assert SECRET not in log
    assert all(json.loads(line)["event"] for line in log.splitlines())


def test_nothing_that_libraries_leave_behind_delays_the_end() -> None:
    leave_behind = "atexit.register(time.sleep, 40); threading.Thread(target=time.sleep, args=(40,)).start()"
    script = f"import atexit, threading, time; {leave_behind}\nfrom retinad.daemon.cli.app import main\nmain()"
    command = [sys.executable, "-c", script, "check", "/nope.toml"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == ExitCode.CONFIG
    assert "No such file" in result.stderr, "the output is complete all the same"
