"""Log lines about the start and reloads, with a subscriber command that works."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from retinad.daemon.config.load import ServiceConfig, load_config
from retinad.daemon.service.events import log_start, subscribe_command
from retinad.daemon.service.reload import log_reload
from retinad.daemon.service.reload_plan import different_keys, plan_reload
from retinad.daemon.service.startup_times import StartupTimes
from retinad.pipeline.config import CurveConfig
from retinad.pipeline.engine.statistics import ModelDescription


@pytest.mark.parametrize(
    ("endpoints", "curve", "command"),
    [
        (("ipc:///run/f", "tcp://127.0.0.1:5555"), None, "subscribe tcp://127.0.0.1:5555"),
        (("ipc:///run/f",), None, "subscribe ipc:///run/f"),
        (("tcp://0.0.0.0:5605",), None, "subscribe tcp://127.0.0.1:5605"),
        (
            ("tcp://*:1",),
            CurveConfig(Path("s"), Path("k")),
            "subscribe tcp://127.0.0.1:1 --client-key CLIENT.key_secret --server-key SERVER.key",
        ),
    ],
)
def test_the_subscriber_command_reaches_this_service(
    endpoints: tuple[str, ...], curve: CurveConfig | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/retinad")
    assert subscribe_command(endpoints, curve) == f"retinad {command}"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("sys.argv", [".venv/bin/retinad", "run"])
    assert subscribe_command(endpoints, curve) == f".venv/bin/retinad {command}"


def test_a_reload_names_what_it_changes_and_what_it_cannot(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        '[model]\npreset = "tiny"\ndevice = "cpu"\n'
        '[[camera]]\nname = "goes"\nsource = "synthetic:"\n[[camera]]\nname = "changes"\nsource = "synthetic:"\n'
    )
    old = load_config(path, {})
    path.write_text(
        '[publish]\nbuffer_mb = 32\n[model]\npreset = "tiny"\ndevice = "cpu"\nlayers = [1]\n'
        '[[camera]]\nname = "changes"\nsource = "synthetic:"\nfps = 3\n[[camera]]\nname = "comes"\nsource = "0"\n'
    )
    new = load_config(path, {})
    assert list(different_keys(old, new)) == ["publish.buffer_mb", "model.layers"]
    moved = replace(old, keep_state=True, model=replace(old.model, name="lingbot-map"))
    assert list(different_keys(old, moved)) == ["service.keep_state", "model.preset"]
    with structlog.testing.capture_logs() as lines:
        log_reload(plan_reload(old, new))
    (line,) = lines
    assert line["memory_kept"] == ["changes"]
    assert (line["added"], line["removed"], line["changed"]) == (["comes"], ["goes"], ["changes"])
    assert line["log_level"] == logging.getLevelName(logging.INFO).lower()


def test_a_plan_says_what_each_change_costs_and_no_value(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    head = '[model]\npreset = "tiny"\ndevice = "cpu"\n'

    def config(*cameras: str, extra: str = "") -> ServiceConfig:
        path.write_text(head + extra + "".join(f'[[camera]]\nname = "{camera}\n' for camera in cameras))
        return load_config(path, {})

    scene = 'source = "synthetic:"'
    old = config(f'a"\n{scene}', f'b"\n{scene}', f'c"\n{scene}', f'd"\n{scene}')
    new = config(
        f'a"\n{scene}\nfps = 3\nqueue_frames = 9\nstall_timeout_s = 3\nconnect_timeout_s = 3\nretry = false',
        f'b"\n{scene}\nfps = 3\nstream = {{ window = 3 }}',
        'c"\nsource = "rtsp://me:s3cret@192.0.2.1/x"',
        f'e"\n{scene}',
        extra="max_batch = 3\n",
    )
    assert list(plan_reload(old, new).lines()) == [
        "camera e: is added",
        "camera d: is removed, its memory is dropped",
        "camera a: its source is opened again, its memory is kept "
        "(fps, queue_frames, connect_timeout_s, stall_timeout_s, retry)",
        "camera b: starts over, its memory is dropped (fps, stream.window)",
        "camera c: starts over, its memory is dropped (source)",
        "model.max_batch: stays as it was until the service is restarted",
    ]
    assert not list(plan_reload(new, new).lines())


def test_a_note_in_the_weights_is_a_warning_at_start(tmp_path: Path) -> None:
    """A hybrid made by `retinad convert` loads and runs like any other, but its features are meaningless untrained."""
    (tmp_path / "config.toml").write_text('[[camera]]\nname = "a"\nsource = "synthetic:"\n')
    config = load_config(tmp_path / "config.toml", {"XDG_RUNTIME_DIR": str(tmp_path)})
    model = ModelDescription("tiny", "sha256:0", ("kda",), "cpu", "float32", "dense", None, "plain", 5, "NOT trained")
    with structlog.testing.capture_logs() as lines:
        log_start(model, ("tcp://127.0.0.1:5555",), config, {}, StartupTimes(1.0, 0.5, 0.2, 0.1, 0.1, 0))
    assert [line["note"] for line in lines if line["log_level"] == "warning" and "note" in line] == ["NOT trained"]


@pytest.mark.parametrize(
    ("device", "torch", "triton", "warned"),
    [
        ("cuda:0", "2.11.0+cu130", "3.6.0", False),
        ("cuda:0", "2.11.0", "3.7.1", False),
        ("cuda:0", "2.13.0", "3.7.1", True),
        ("cuda:0", "2.11.0", None, True),
        ("cpu", "2.13.0", "3.7.1", False),
    ],
)
def test_untested_versions_are_warned_of_once_and_on_a_gpu_only(
    tmp_path: Path, device: str, torch: str, triton: str | None, warned: bool
) -> None:
    (tmp_path / "config.toml").write_text('[[camera]]\nname = "a"\nsource = "synthetic:"\n')
    config = load_config(tmp_path / "config.toml", {"XDG_RUNTIME_DIR": str(tmp_path)})
    model = ModelDescription("tiny", "sha256:0", ("kda",), device, "float32", "dense", None, "plain", 5, None)
    versions = {"retinad": "1", "torch": torch} | ({} if triton is None else {"triton": triton})
    with structlog.testing.capture_logs() as lines:
        log_start(model, ("tcp://127.0.0.1:5555",), config, versions, StartupTimes(1.0, 0.5, 0.2, 0.1, 0.1, 0))
    warnings = [line for line in lines if line["event"] == "untested versions of torch and triton"]
    assert [(line["torch"], line["triton"]) for line in warnings] == ([(torch, triton)] if warned else [])
    (started,) = (line for line in lines if line["event"] == "started")
    assert f"torch {torch}" in started["versions"]


def test_a_reload_that_disables_a_camera_removes_it(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    text = '[model]\npreset = "tiny"\ndevice = "cpu"\n[[camera]]\nname = "stays"\nsource = "synthetic:"\n'
    path.write_text(f'{text}[[camera]]\nname = "goes"\nsource = "0"\n')
    old = load_config(path, {})
    path.write_text(f'{text}[[camera]]\nname = "goes"\nsource = "0"\nenabled = false\n')
    new = load_config(path, {})
    assert not list(different_keys(old, new))
    with structlog.testing.capture_logs() as lines:
        log_reload(plan_reload(old, new))
    assert (lines[0]["added"], lines[0]["removed"], lines[0]["changed"]) == ([], ["goes"], [])
