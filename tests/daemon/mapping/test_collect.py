"""Files are whole at any moment, trajectories never mix, and every end writes what is there."""

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from retinad.daemon.exit_codes import ExitCode, JobError
from retinad.daemon.mapping.collect import Limits, collect, stop_signals
from retinad.daemon.mapping.frames import FrameSource, PosedFrame
from retinad.daemon.mapping.targets import Target, find_targets

from .frames import frame


class Numbers:
    """Writes the numbers of its frames; frames without a pose are of no use."""

    def __init__(self) -> None:
        self.found: list[int] = []
        self.writes = 0

    def add(self, frame: PosedFrame) -> bool:
        if frame.pose is not None:
            self.found.append(frame.epoch_frame)
        return frame.pose is not None

    def clear(self) -> None:
        self.found = []

    def write(self, form: str, file: BinaryIO) -> None:
        self.writes += 1
        file.write(f"{form} {self.found}".encode())

    def describe(self) -> str:
        return f"{len(self.found)} numbers"


def run(
    folder: Path, frames: Iterator[PosedFrame | None], limits: Limits | None = None, *, result: Numbers | None = None
) -> tuple[ExitCode, list[str]]:
    said: list[str] = []
    source = FrameSource("robot", frames, "")
    targets = (Target(folder / "a.txt", ".txt", "plain"),)
    code = collect(source, result or Numbers(), targets, limits or Limits(), said.append, lambda: False)
    return code, said


def test_the_end_of_the_frames_writes_them_all(tmp_path: Path) -> None:
    code, said = run(tmp_path, iter([frame(0), None, frame(1, lost=True), frame(2)]))
    assert (code, said) == (ExitCode.OK, [f"2 numbers of robot: {tmp_path}/a.txt"])
    assert (tmp_path / "a.txt").read_text() == "plain [0, 2]"


def test_a_number_of_useful_frames_or_of_seconds_ends_it(tmp_path: Path) -> None:
    def endless(pause_s: float) -> Iterator[PosedFrame | None]:
        for number in range(10**9):
            time.sleep(pause_s)
            yield frame(number, lost=number % 2 == 0) if number % 4 else None

    run(tmp_path, endless(0), Limits(frames=3))
    assert (tmp_path / "a.txt").read_text() == "plain [1, 3, 5]"
    began_s = time.monotonic()
    run(tmp_path, endless(0.01), Limits(seconds=0.3))
    assert time.monotonic() - began_s < 5


def test_files_are_replaced_while_frames_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinad.daemon.mapping.collect.WRITE_SHARE", 0)  # a write may take long here
    seen: list[str] = []

    def frames() -> Iterator[PosedFrame | None]:
        for number in range(4):
            yield frame(number)
            time.sleep(0.06)
            yield None  # without a frame, but it is time to write
            seen.append((tmp_path / "a.txt").read_text())
        time.sleep(0.06)
        yield None

    result = Numbers()
    run(tmp_path, frames(), Limits(write_every_s=0.05), result=result)
    assert seen == [f"plain {list(range(number + 1))}" for number in range(4)]
    assert result.writes == 4, "what has not changed is not written again"
    assert not list(tmp_path.glob("*.partial"))


def test_a_slow_write_does_not_take_all_the_time(tmp_path: Path) -> None:
    class Slow(Numbers):
        def write(self, form: str, file: BinaryIO) -> None:
            time.sleep(0.05)
            super().write(form, file)

    def frames() -> Iterator[PosedFrame]:
        end_s = time.monotonic() + 0.5
        number = 0
        while time.monotonic() < end_s:
            yield frame(number)
            number += 1

    result = Slow()
    run(tmp_path, frames(), Limits(write_every_s=0.01), result=result)
    assert result.writes == 2, "one at once, then a pause of 20 times as long, then the last"


def test_a_new_trajectory_begins_new_files_and_the_earlier_ones_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a-1.txt").write_text("somebody's")
    frames = [frame(5, epoch=3, world_epoch=1), frame(6, epoch=3, world_epoch=1), frame(0, epoch=4, world_epoch=4)]
    _, said = run(tmp_path, iter(frames))
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert texts == {"a-1.txt": "somebody's", "a-2.txt": "plain [5, 6]", "a.txt": "plain [0]"}
    assert said[0] == "the trajectory of robot begins anew: the memory was lost or set back"
    assert said[1] == f"2 numbers before that: {tmp_path}/a-2.txt"


@pytest.mark.parametrize(
    ("later", "continues"),
    [
        (frame(6, epoch=3), True),
        (frame(99, epoch=3), True),  # records were lost on the way
        (frame(0, epoch=4), True),  # a new epoch is aligned to the trajectory
        (frame(5, epoch=3), False),
        (frame(0, epoch=3), False),  # the service was restarted without its memory
        (frame(9, epoch=2), False),
        (frame(6, epoch=3, world_epoch=1), False),
    ],
)
def test_a_frame_continues_a_trajectory_whose_memory_it_continues(later: PosedFrame, continues: bool) -> None:
    assert later.continues(frame(5, epoch=3)) is continues


def test_a_trajectory_without_a_pose_leaves_no_file(tmp_path: Path) -> None:
    _, said = run(tmp_path, iter([frame(0), frame(0, world_epoch=1, lost=True), frame(0, world_epoch=2, lost=True)]))
    assert {path.name for path in tmp_path.iterdir()} == {"a-1.txt"}
    assert "has no frame of use" in said[-1]


def test_without_a_useful_frame_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no frame of robot could be used: nothing was written") as caught:
        run(tmp_path, iter([None, frame(0, lost=True)]))
    assert caught.value.code is ExitCode.NO_INPUT
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_said_once_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def frames(then_room: bool) -> Iterator[PosedFrame]:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            for number in range(5):
                yield frame(number)
                time.sleep(0.02)
            if not then_room:
                return
        yield frame(5)

    _, said = run(tmp_path, frames(then_room=True), Limits(write_every_s=0.01))
    assert said == [
        f"warning: {tmp_path}/a.txt cannot be written: No space left on device; trying again",
        f"6 numbers of robot: {tmp_path}/a.txt",
    ]
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(JobError, match=r"a\.txt cannot be written: No space left") as caught:
        run(tmp_path, frames(then_room=False), Limits(write_every_s=60))
    assert caught.value.code is ExitCode.IO_ERROR
    assert (tmp_path / "a.txt").read_text() == "plain [0, 1, 2, 3, 4, 5]", "the last whole file stays"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_writes_what_is_there_and_a_second_one_ends_at_once(tmp_path: Path, number: int) -> None:
    def frames() -> Iterator[PosedFrame]:
        yield frame(0)
        os.kill(os.getpid(), number)
        yield frame(1)
        raise AssertionError("it asks for no further frame")

    before = signal.getsignal(number)
    with stop_signals() as is_stopped:
        targets = (Target(tmp_path / "a.txt", ".txt", "plain"),)
        source = FrameSource("robot", frames(), "")
        assert collect(source, Numbers(), targets, Limits(), lambda text: None, is_stopped) is ExitCode.OK
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert (tmp_path / "a.txt").read_text() == "plain [0, 1]"
    assert signal.getsignal(number) == before


FORMS = {".svg": "svg", ".tum.txt": "tum"}


def test_a_suffix_chooses_the_format(tmp_path: Path) -> None:
    targets = find_targets([tmp_path / "a.tum.txt", tmp_path / "b.svg"], FORMS)
    assert [(target.form, target.suffix) for target in targets] == [("tum", ".tum.txt"), ("svg", ".svg")]
    assert targets[0].numbered() == tmp_path / "a-1.tum.txt"
    assert not list(tmp_path.iterdir()), "nothing is written before there is a pose"


@pytest.mark.parametrize(
    ("names", "code", "reason"),
    [
        (["a.pdf"], ExitCode.USAGE, "expected a name that ends in .svg, .tum.txt"),
        ([".svg"], ExitCode.USAGE, "expected a name"),
        (["a.svg", "a.svg"], ExitCode.USAGE, "given twice"),
        (["none/a.svg"], ExitCode.CANNOT_CREATE, "No such file or directory"),
        (["folder.svg"], ExitCode.CANNOT_CREATE, "Is a directory"),
    ],
)
def test_a_file_that_cannot_be_is_refused_at_the_start(
    tmp_path: Path, names: list[str], code: ExitCode, reason: str
) -> None:
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(JobError, match=reason) as caught:
        find_targets([tmp_path / name for name in names], FORMS)
    assert caught.value.code is code
