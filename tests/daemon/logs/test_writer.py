"""Whoever logs never waits for whoever reads: lines wait in a bounded queue, and those that do not fit are counted."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from retinad.daemon.logs import writer as writer_module
from retinad.daemon.logs.writer import LogWriter

from ...deadlines import scaled


@dataclass
class Pipe:
    """A small pipe. `read` empties it."""

    read_fd: int
    write_fd: int

    def read(self) -> str:
        os.set_blocking(self.read_fd, False)
        try:
            return os.read(self.read_fd, 1 << 20).decode()
        except BlockingIOError:
            return ""

    def read_until(self, text: str) -> str:
        got, until = "", time.monotonic() + scaled(5)
        while text not in got:
            assert time.monotonic() < until, got
            got += self.read()
            time.sleep(0.005)
        return got


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    read_fd, write_fd = os.pipe()
    fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, 4096)
    yield Pipe(read_fd, write_fd)
    os.close(read_fd)
    os.close(write_fd)


def dropped(count: int) -> str:
    return f"{count} dropped"


def test_lines_come_out_whole_and_in_order(pipe: Pipe) -> None:
    writer = LogWriter(pipe.write_fd, dropped)
    for number in range(100):
        writer.write(f"line {number}")
    assert writer.close(scaled(5), scaled(5))
    assert pipe.read() == "".join(f"line {number}\n" for number in range(100))


def test_a_full_pipe_stops_nobody_and_what_does_not_fit_is_counted_at_its_place(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MOST_BYTES", 50_000)
    writer = LogWriter(pipe.write_fd, dropped)
    began = time.monotonic()
    for number in range(5000):
        writer.write(f"{number:099}")
    assert time.monotonic() - began < scaled(1)
    text = pipe.read_until("dropped")
    writer.write("after")
    text += pipe.read_until("after")
    assert writer.close(scaled(5), scaled(5))
    *kept, note, after = text.splitlines()
    assert kept == [f"{number:099}" for number in range(len(kept))]
    assert (note, after) == (f"{5000 - len(kept)} dropped", "after")
    assert 500 <= len(kept) <= 560  # the queue and the pipe


def test_a_writer_that_is_stuck_is_abandoned(pipe: Pipe) -> None:
    writer = LogWriter(pipe.write_fd, dropped)
    writer.write("x" * 100_000)
    began = time.monotonic()
    assert not writer.drain(0.1)
    assert not writer.close(5, 0.2)
    assert time.monotonic() - began < scaled(1)
    pipe.read_until("x" * 90_000)  # lets the thread end


def test_a_slow_reader_gets_everything_while_there_is_progress(pipe: Pipe) -> None:
    writer = LogWriter(pipe.write_fd, dropped)
    for number in range(200):
        writer.write(f"{number:099}")
    got = ""
    while not writer.drain(0.01):
        got += pipe.read()
    assert len((got + pipe.read()).split()) == 200
    assert writer.close(scaled(5), scaled(5))


def test_a_descriptor_that_another_process_made_non_blocking_loses_no_line(pipe: Pipe) -> None:
    os.set_blocking(pipe.write_fd, False)
    writer = LogWriter(pipe.write_fd, dropped)
    for number in range(200):
        writer.write(f"{number:099}")
    assert len(pipe.read_until(f"{199:099}").split()) == 200
    assert writer.close(scaled(5), scaled(5))


def test_lines_that_a_full_disk_refuses_are_counted_and_named_once_there_is_room(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = [True]
    write = os.write

    def write_if_room(descriptor: int, data: bytes) -> int:
        if descriptor == pipe.write_fd and is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", write_if_room)
    writer = LogWriter(pipe.write_fd, dropped)
    for number in range(7):
        writer.write(str(number))
        assert writer.drain(scaled(5))
    is_full[0] = False
    writer.write("there is room")
    assert pipe.read_until("room\n") == "7 dropped\nthere is room\n"
    assert writer.close(scaled(5), scaled(5))


def test_a_reader_that_is_gone_costs_nothing(pipe: Pipe) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    writer = LogWriter(write_fd, dropped)
    used = time.process_time()
    for _ in range(10):
        writer.write("x")
        time.sleep(0.02)
    assert time.process_time() - used < 0.1
    assert writer.close(scaled(5), scaled(5))
    os.close(write_fd)
