"""What the service logs: a trouble once and not every second, and a line to paste that works."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from retinad.daemon.config.load import load_config
from retinad.daemon.service.events import CameraLog, different_keys, log_reload, log_start, subscribe_command
from retinad.daemon.service.startup_times import ReadyTimes
from retinad.pipeline.capture.camera import CameraState, CameraStatus
from retinad.pipeline.config import CurveConfig
from retinad.pipeline.engine.statistics import ModelDescription
from retinad.pipeline.errors import SourceFault
from retinad.pipeline.sources.reader import SourceInfo

TROUBLE = CameraStatus("a", CameraState.BACKOFF, SourceFault.REFUSED, "nothing listens", attempt=1)


def levels(statuses: list[CameraStatus]) -> list[str]:
    with structlog.testing.capture_logs() as lines:
        log = CameraLog("a")
        for status in statuses:
            log.state(status)
    return [line["log_level"] for line in lines]


def test_a_trouble_is_a_warning_once_and_at_milestones() -> None:
    connecting = CameraStatus("a", CameraState.CONNECTING)
    tries = [replace(TROUBLE, attempt=number) for number in range(1, 12)]
    seen = levels([step for status in tries for step in (connecting, status)])
    assert [seen[0], seen[1]] == ["info", "warning"]
    assert [number for number, level in enumerate(seen[1::2], 1) if level == "warning"] == [1, 10]
    assert set(seen[2::2]) == {"debug"}


def test_another_trouble_is_a_warning_again_and_so_is_the_same_after_it_ran() -> None:
    other = replace(TROUBLE, reason="it did not answer", attempt=2)
    running = CameraStatus("a", CameraState.RUNNING)
    assert levels([TROUBLE, other, running, other]) == ["warning", "warning", "info", "warning"]


def test_the_passes_of_a_looped_source_after_the_first_are_for_debugging() -> None:
    passes = [CameraStatus("a", CameraState.RUNNING, stream_epoch=n, size=(64, 48)) for n in range(3)]
    connecting = CameraStatus("a", CameraState.CONNECTING)
    assert levels([connecting, *passes]) == ["info", "info", "debug", "debug"]
    assert levels([passes[0], replace(passes[0], size=(32, 24))]) == ["info", "info"]
    assert levels([passes[0], TROUBLE, passes[1]]) == ["info", "warning", "info"]


def test_a_trouble_that_takes_another_time_at_each_try_is_the_same_trouble() -> None:
    tries = [replace(TROUBLE, reason=f"no answer after {3000 + number}.5 ms", attempt=number) for number in range(1, 5)]
    assert levels(tries) == ["warning", "debug", "debug", "debug"]


def test_three_pictures_left_out_are_named_at_the_default_level_and_the_rest_are_counted() -> None:
    with structlog.testing.capture_logs() as lines:
        log = CameraLog("a")
        for number in range(5):
            log.line(f"left out: pics/{number}.png: it is no picture")
        log.line("[mjpeg] something from a library")
        log.close()
        log.close()
    assert [(line["event"], line["log_level"], line.get("more_like_it")) for line in lines] == [
        *((f"left out: pics/{number}.png: it is no picture", "warning", 0) for number in range(3)),
        ("[mjpeg] something from a library", "debug", None),
        ("more damage than was named", "warning", 2),
    ]


def test_what_a_driver_does_otherwise_is_a_warning_once_and_not_at_each_connection() -> None:
    info = SourceInfo("v4l2", notes=("asked MJPG, got YUYV", "asked 30 frames/s, got 10"))
    running, other = (
        CameraStatus("a", CameraState.RUNNING, info=i) for i in (info, replace(info, notes=("asked 30, got 5",)))
    )
    with structlog.testing.capture_logs() as lines:
        log = CameraLog("a")
        for status in (CameraStatus("a", CameraState.CONNECTING), running, replace(TROUBLE, info=info), running, other):
            log.state(status)
    warned = [line["event"] for line in lines if line["log_level"] == "warning" and "asked" in line["event"]]
    assert warned == ["asked MJPG, got YUYV", "asked 30 frames/s, got 10", "asked 30, got 5"]


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
def test_the_line_to_paste_reaches_this_service(
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
        log_reload(old, new)
    (line,) = lines
    assert (line["added"], line["removed"], line["changed"]) == (["comes"], ["goes"], ["changes"])
    assert line["log_level"] == logging.getLevelName(logging.INFO).lower()


def test_what_must_be_known_of_the_weights_is_a_warning_at_start(tmp_path: Path) -> None:
    """A hybrid that `retinad convert` made loads and runs like any other, and its features mean nothing."""
    (tmp_path / "config.toml").write_text('[[camera]]\nname = "a"\nsource = "synthetic:"\n')
    config = load_config(tmp_path / "config.toml", {"XDG_RUNTIME_DIR": str(tmp_path)})
    model = ModelDescription("tiny", "sha256:0", ("kda",), "cpu", "float32", "dense", None, "plain", 5, "NOT trained")
    with structlog.testing.capture_logs() as lines:
        log_start(model, ("tcp://127.0.0.1:5555",), config, {}, ReadyTimes(1.0, 0.5, 0.2, 0.1, 0.1, 0))
    assert [line["note"] for line in lines if line["log_level"] == "warning" and "note" in line] == ["NOT trained"]
