"""Listens to FFmpeg's log inside the capture process, for what OpenCV tells by no property.

OpenCV scales every picture of a stream to the size of the first, in silence. Only FFmpeg's log at level debug has it:
a decoder that sets itself up anew, for another size or pixel format, chooses its format once more. That is 10 to 30
lines a frame, which end here: warnings and errors alone go on to the service. What it costs cannot be told from
noise: ms of CPU time a frame with and without it, means of 3 runs on 2 busy cores, 2.7 and 2.8 for 640x480 Motion
JPEG, 5.2 and 5.4 for 1080p H.264, 7.0 and 6.4 for 1080p HEVC.

At that level FFmpeg also prints the requests that it sends, passwords in Base64 included: no such line may go on.
"""

import fcntl
import os
import re
import select
import sys
import threading
from contextlib import suppress

LEVEL = 48
"""FFmpeg's number of level debug, which OpenCV is told at its import."""
_WARNING = 24
_PIPE_BYTES = 2**20
_PAUSE_S = 0.02  # else the thread would wake for every line, of which readers take care with each frame
_START = re.compile(rb"\[OPENCV:FFMPEG:(?=\d+\])")
_OPENCV = re.compile(rb"\[ ?(?:WARN|ERROR|FATAL):")
_SET_UP = b"chosen by get_format"
_CONTAINER = re.compile(rb"Format (\S+) probed with size")
_CUT_OFF = b"Stream ends prematurely"
_NOISE = re.compile(rb" ?(?:deprecated pixel format used|Stream ends prematurely at \d+, should be %d)" % (2**64 - 1))
"""Lines that go no further: of a pixel format by its older name, and of the end of a stream that announced no length,
which is 2^64 - 1 here: that it closed is said in better words, and no picture is damaged by it."""
_REQUEST = b" request: "
_READ = b" Statistics: "
_MOST_REQUESTS = 8
"""Of one opening, the first and those that redirections lead to; FFmpeg gives up, in silence, after one more."""


class FFmpegLog:
    """Takes the place of this process's standard output and error until it is closed; there can be one at a time.

    What Python prints goes past it. A thread passes lines on while FFmpeg is at work, so that the service hears what a
    source that hangs said last.

    Attributes:
        set_ups: how often decoders were set up, as of the last `catch_up`.
        container: FFmpeg's name of the container format, as it found out itself, or an empty string.
        cut_off: whether an HTTP server closed the connection before all that it had announced was sent.
        requests: HTTP requests that were sent.
        read: whether FFmpeg has read what one of them was answered with, and closed it.
    """

    def __init__(self) -> None:
        self.set_ups = 0
        self.container = ""
        self.cut_off = False
        self.requests = 0
        self.read = False
        self._lock = threading.Lock()
        self._partial = b""
        self._passing = True
        self._closing = threading.Event()
        self._source, sink = os.pipe()
        os.set_blocking(self._source, False)
        with suppress(PermissionError):  # this user has too much of it already
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._kept = tuple((number, os.dup(number)) for number in (1, 2))
        for number, _ in self._kept:
            os.dup2(sink, number)
        os.close(sink)
        self._stderr, sys.stderr = sys.stderr, os.fdopen(self._kept[1][1], "w", buffering=1, closefd=False)
        self._thread = threading.Thread(target=self._pass_on, name="ffmpeg log", daemon=True)
        self._thread.start()

    @property
    def login_unknown(self) -> bool:
        """Whether an HTTP source that could not be opened, for which FFmpeg gave no reason, answered 401.

        FFmpeg names the number of every other error, and of 401 where it knows the login that is asked for: Basic or
        Digest. Where an answer names another or none, the connection just ends (seen with libavformat 62.12).
        """
        return 0 < self.requests <= _MOST_REQUESTS and not self.read

    def catch_up(self) -> None:
        """Take in all that was printed until now."""
        with self._lock:
            self._drain()

    def close(self) -> None:
        """Pass on what is left, and give standard output and error back. Idempotent."""
        if self._thread.is_alive():
            self._closing.set()
            sys.stderr = self._stderr
            for number, kept in self._kept:
                os.dup2(kept, number)  # closes the last end that writes
            self._thread.join()
            self._hear(self._partial)
            for descriptor in (self._source, *(kept for _, kept in self._kept)):
                os.close(descriptor)

    def _pass_on(self) -> None:
        ready = select.poll()
        ready.register(self._source, select.POLLIN)
        more = True
        while more:
            ready.poll()
            self._closing.wait(_PAUSE_S)
            with self._lock:
                more = self._drain()

    def _drain(self) -> bool:
        while True:
            try:
                chunk = os.read(self._source, 65536)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            *whole, self._partial = (self._partial + chunk).split(b"\n")
            for line in whole:
                self._hear(line)

    def _hear(self, line: bytes) -> None:
        # A message without an end of line has the next one behind it; one of several lines is marked in its first.
        before, *messages = _START.split(line)
        if before and (self._passing or _OPENCV.match(before)):
            self._send(before)
        for message in messages:
            level, _, text = message.partition(b"]")
            self._note(text)
            self._passing = int(level) <= _WARNING and _NOISE.match(text) is None
            if self._passing:
                self._send(b"[OPENCV:FFMPEG:" + message)

    def _note(self, message: bytes) -> None:
        if _SET_UP in message:
            self.set_ups += 1
        elif _CUT_OFF in message:
            self.cut_off = True
        elif message.startswith(_REQUEST):
            self.requests += 1
        elif message.startswith(_READ):
            self.read = True
        elif not self.container and (found := _CONTAINER.search(message)):
            self.container = found[1].decode(errors="replace")

    def _send(self, line: bytes) -> None:
        with suppress(OSError):  # the service is gone
            os.write(self._kept[1][1], line + b"\n")
