"""Cameras in the whole service, run in the test's own process: admission, changes and failed frames."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from retinad.client import EndRecord, Record
from retinad.daemon.exit_codes import ExitCode

from ..in_process import InProcessService, until
from ..records import ends_of, features_of, record_of, statuses_of
from ..service_rig import camera, write_config, write_frames

SOURCE = "synthetic:?fps=40&width=160&height=120"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


async def nothing(records: list[Record]) -> None:
    return


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def reload() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


def test_one_camera_too_many_fails_with_the_reason_and_the_others_keep_running(tmp_path: Path) -> None:
    """Until there is room for it: after a reload without the other camera, it runs."""
    first, second = (camera(name, SOURCE) for name in ("first", "second"))
    config = write_config(tmp_path, first + second, model="max_streams = 1")
    service = InProcessService(tmp_path, config=config)
    refused: list[EndRecord] = []

    async def act(records: list[Record]) -> None:
        await until(lambda: any(map(record_of("first", 5), records)) and bool(ends_of(records)))
        refused.extend(ends_of(records))
        write_config(tmp_path, second, model="max_streams = 1")
        reload()
        await until(lambda: any(map(record_of("second"), records)))
        stop()

    with capture_logs() as log:
        assert service.run(act) == ExitCode.OK
    (end,) = refused
    assert (end.camera, end.captured_total) == ("second", 0)
    assert "exceeds max_streams = 1" in end.reason
    assert "MiB for 4 frames of 22 tokens and 4 x 6 tokens of history" in end.reason
    (line,) = (line for line in log if line["event"] == "camera failed")
    assert (line["camera"], line["reason"], line["log_level"]) == ("second", end.reason, "error")


def test_a_changed_camera_keeps_its_counters_and_begins_a_new_stream_epoch(tmp_path: Path) -> None:
    service = InProcessService(tmp_path, config=write_config(tmp_path, camera("a", SOURCE)))

    async def act(records: list[Record]) -> None:
        await until(lambda: any(map(record_of("a", 5), records)))
        write_config(tmp_path, camera("a", SOURCE.replace("width=160", "width=200")))
        reload()
        await until(lambda: any(record.stream_epoch == 1 for record in features_of(records)))
        stop()

    assert service.run(act) == ExitCode.OK
    published = features_of(service.records)
    first = next(record for record in published if record.stream_epoch == 1)
    before = published[published.index(first) - 1]
    assert before.stream_epoch == 0
    assert (first.seq, first.source_size, first.instance) == (0, (200, 120), before.instance)
    place = next(number for number, record in enumerate(service.records) if record is first)
    (end,) = ends_of(service.records[:place])
    status = next(one for one in statuses_of(service.records) if one.stream_epoch == 1 and one.state == "running")
    assert status.captured_total >= end.captured_total


def test_a_frame_that_does_not_fit_the_model_is_counted_and_logged_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    paths = write_frames(folder, 6)
    for path in paths[1:4]:
        cv2.imwrite(str(path), np.zeros((1, 3000, 3), np.uint8))
    config = write_config(tmp_path, camera("a", folder, mode="lossless"), service="exit_when_done = true")
    service = InProcessService(tmp_path, config=config)

    with capture_logs() as log:
        assert service.run(nothing) == ExitCode.OK
    (end,) = ends_of(service.records)
    assert (end.captured_total, end.published_total, end.dropped_total, end.failed_total) == (6, 3, 0, 3)
    lines = [line for line in log if line["event"] == "frame failed"]
    assert [(line["camera"], line["source_seq"]) for line in lines] == [("a", 1)]
    assert "3000" in str(lines[0]["reason"])


def test_failed_frames_are_logged_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    write_frames(folder, 4)
    (folder / "frame4.png").write_bytes(b"")
    assert cv2.imwrite(str(folder / "frame5.png"), np.zeros((4000, 2, 3), np.uint8))  # fits no model
    service = InProcessService(tmp_path, config=write_config(tmp_path, camera("walk", folder, mode="lossless")))
    with capture_logs() as log:
        assert service.run(nothing) == ExitCode.OK
    (end,), last = ends_of(service.records), statuses_of(service.records)[-1]
    assert (end.captured_total, end.published_total, end.failed_total) == (6, 4, 2)
    assert last.decode_errors_total == 1
    assert last.last_frame_age_s is not None
    warnings = [line for line in log if line["log_level"] == "warning" and line.get("camera") == "walk"]
    assert [line["event"] for line in warnings] == [
        f"left out: {folder}/frame4.png: the file is empty",
        "frame failed",
    ]
    assert "4000" in str(warnings[1]["reason"])


def test_a_reload_replaces_cameras_and_the_others_lose_nothing(tmp_path: Path) -> None:
    stays = camera("stays", SOURCE, mode="lossless")
    config = write_config(tmp_path, stays + camera("goes", SOURCE))
    service = InProcessService(tmp_path, config=config)

    async def act(records: list[Record]) -> None:
        await until(lambda: any(map(record_of("stays", 5), records)))
        write_config(tmp_path, stays + camera("comes", SOURCE))
        reload()
        await until(lambda: any(map(record_of("comes"), records)))
        config.write_text("[publish]\nbuffer_md = 3\n")
        reload()
        await until(lambda: any("keeping the old one" in line["event"] for line in log))
        seq = features_of(records, "stays")[-1].seq
        await until(lambda: any(map(record_of("stays", seq + 1), records)))
        ended_before_the_stop.extend(end.camera for end in ends_of(records))
        stop()

    ended_before_the_stop: list[str] = []
    with capture_logs() as log:
        assert service.run(act) == ExitCode.OK
    assert ended_before_the_stop == ["goes"]
    published = features_of(service.records, "stays")
    assert not any(record.gaps for record in published)
    assert [record.seq for record in published] == list(range(len(published)))
    (problem,) = (line for line in log if "keeping the old one" in line["event"])
    assert "buffer_mb" in str(problem)
