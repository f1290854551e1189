"""Reads FFmpeg's log inside the capture process, for facts that OpenCV has no property for.

OpenCV silently scales every frame of a stream to the size of the first. Only FFmpeg's debug log shows a change: a
decoder that is reconfigured for another size or pixel format chooses its format again. That log has 10 to 30 lines per
frame; they stop here, and only warnings and errors are forwarded to the service. The cost is within noise: CPU time per
frame in ms with and without it, means of 3 runs on 2 busy cores: 2.7 and 2.8 for 640x480 Motion JPEG, 5.2 and 5.4 for
1080p H.264, 7.0 and 6.4 for 1080p HEVC.

At debug level FFmpeg also prints the requests that it sends, including passwords in Base64: these lines must never be
forwarded.
"""

import fcntl
import os
import re
import select
import sys
import threading
from contextlib import suppress

LEVEL = 48
"""FFmpeg's number for the debug level; OpenCV reads it when it is imported."""
_WARNING = 24
_PIPE_BYTES = 2**20
_PAUSE_S = 0.02  # without it the thread would wake up for every line; readers catch up with each frame anyway
_START = re.compile(rb"\[OPENCV:FFMPEG:(?=\d+\])")
_OPENCV = re.compile(rb"\[ ?(?:WARN|ERROR|FATAL):")
_DECODER_SETUP = b"chosen by get_format"
_CONTAINER = re.compile(rb"Format (\S+) probed with size")
_CUT_OFF = b"Stream ends prematurely"
_NOISE = re.compile(
    rb" ?(?:deprecated pixel format used|Cannot convert interlaced|Stream ends prematurely at \d+, should be %d)"
    % (2**64 - 1)
)
"""Matches lines that are not forwarded: a deprecated pixel format's name, and two events that are reported in better
words. These are an interlaced frame, and the end of a stream without an announced length (2^64 - 1 here), which
damages no frame.
"""
_REFUSED = b" -> fmt:"
"""Part of each of swscale's messages about a frame that it does not convert. OpenCV ignores its result: `retrieve`
succeeds and gives whatever was in memory."""
_INTERLACED = b"Cannot convert interlaced"
_LOGIN = re.compile(rb"\s*WWW-Authenticate:\s*([^\r\n]+)", re.IGNORECASE)
"""Matches the login headers of an RTSP response with an error. FFmpeg prints them at debug level."""
_ERROR_STATUS = re.compile(rb"(?:method \w+ failed:|HTTP error) ?(\d{3})")
_TORN = re.compile(rb" ?(?:overread -?\d|error y=\d+ x=\d|error count: \d)")
"""Matches messages of FFmpeg's Motion JPEG decoder that it gave up within a picture. The decoder does not fill the rest
of the picture, which keeps what was in memory.
Such a line belongs to the frame just asked for, since this decoder has no threads.
"""
_REQUEST = b" request: "
_READ = b" Statistics: "
_MOST_REQUESTS = 8
"""Maximum number of requests per opening: the first and its redirections. After one more, FFmpeg gives up silently."""


class FFmpegLog:
    """Replaces this process's standard output and error until it is closed. Only one can exist at a time.

    Python's own output bypasses it. A thread forwards lines while FFmpeg is busy, so that the service sees the last
    lines of a source that hangs.

    Attributes:
        decoder_setups: how often decoders were set up, as of the last `catch_up`.
        refused: number of frames that FFmpeg decoded but did not convert to BGR, as of the last `catch_up`.
        torn: number of messages about Motion JPEG pictures that were decoded only in part, as of the last `catch_up`.
            One picture may cause several.
        complaints: number of warnings and errors, as of the last `catch_up`.
        interlaced: whether one of the refused frames was refused because it is interlaced.
        container: FFmpeg's name of the detected container format, or an empty string.
        cut_off: whether an HTTP server closed the connection before it had sent everything that it announced.
        requests: number of HTTP requests sent.
        read: whether FFmpeg has read the response to one of these requests, and closed the connection.
        login_refused: whether the last response with an error was a 401.
        logins: the login methods that RTSP responses offered, as written in their headers.
    """

    def __init__(self) -> None:
        self.login_refused = False
        self.logins: list[str] = []
        self.decoder_setups = 0
        self.refused = 0
        self.torn = 0
        self.complaints = 0
        self.interlaced = False
        self.container = ""
        self.cut_off = False
        self.requests = 0
        self.read = False
        self._lock = threading.Lock()
        self._partial = b""
        self._forwarding = True
        self._closing = threading.Event()
        self._source, sink = os.pipe()
        os.set_blocking(self._source, False)
        with suppress(PermissionError):  # this user is over the limit on pipe memory
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._saved = tuple((number, os.dup(number)) for number in (1, 2))
        for number, _ in self._saved:
            os.dup2(sink, number)
        os.close(sink)
        self._stderr, sys.stderr = (
            sys.stderr,
            os.fdopen(self._saved[1][1], "w", buffering=1, errors="backslashreplace", closefd=False),
        )
        self._thread = threading.Thread(target=self._forward_lines, name="ffmpeg log", daemon=True)
        self._thread.start()

    @property
    def login_unknown(self) -> bool:
        """Whether an HTTP source that could not be opened, without a reason from FFmpeg, answered 401.

        FFmpeg prints the status of every other error, and of a 401 that asks for Basic or Digest authentication. If the
        response names another scheme or none, FFmpeg just closes the connection (seen with libavformat 62.12).
        """
        return 0 < self.requests <= _MOST_REQUESTS and not self.read

    def catch_up(self) -> None:
        """Process everything printed so far."""
        with self._lock:
            self._drain()

    def close(self) -> None:
        """Forward the remaining lines, and restore standard output and error. Idempotent."""
        if self._thread.is_alive():
            self._closing.set()
            sys.stderr = self._stderr
            for number, saved in self._saved:
                os.dup2(saved, number)  # closes the last write end
            self._thread.join()
            self._on_line(self._partial)
            for descriptor in (self._source, *(saved for _, saved in self._saved)):
                os.close(descriptor)

    def _forward_lines(self) -> None:
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
                self._on_line(line)

    def _on_line(self, line: bytes) -> None:
        # A message without a newline is followed by the next on the same line; only the first of a message's lines has
        # the prefix.
        if _REFUSED in line:
            self.refused += 1
        before, *messages = _START.split(line)
        if login := _LOGIN.match(before):
            self.logins.append(login[1].decode(errors="replace"))
        if before and (self._forwarding or _OPENCV.match(before)):
            self._forward(before)
        for message in messages:
            level, _, text = message.partition(b"]")
            self._note(text)
            self._forwarding = int(level) <= _WARNING and _NOISE.match(text) is None
            if self._forwarding:
                self.complaints += 1
                self._forward(b"[OPENCV:FFMPEG:" + message)

    def _note(self, message: bytes) -> None:
        if _DECODER_SETUP in message:
            self.decoder_setups += 1
        elif _INTERLACED in message:
            self.interlaced = True
        elif _TORN.match(message):
            self.torn += 1
        elif _CUT_OFF in message:
            self.cut_off = True
        elif status := _ERROR_STATUS.search(message):
            self.login_refused = status[1] == b"401"
        elif login := _LOGIN.match(message):
            self.logins.append(login[1].decode(errors="replace"))
        elif message.startswith(_REQUEST):
            self.requests += 1
        elif message.startswith(_READ):
            self.read = True
        elif not self.container and (found := _CONTAINER.search(message)):
            self.container = found[1].decode(errors="replace")

    def _forward(self, line: bytes) -> None:
        with suppress(OSError):  # the service is gone
            os.write(self._saved[1][1], line + b"\n")
