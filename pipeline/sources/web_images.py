"""Reads images over HTTP: multipart streams (Motion JPEG), and snapshot addresses, which are polled.

Each image is decoded by the rules of `images`. The time of an image is when its part's header, or its response,
arrived; it does not depend on later images.
"""

import http.client
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from ..config import CameraConfig, CaptureMode
from ..errors import SourceError, SourceFault
from ..frames import Pixels
from .images import decode
from .login import FFMPEG_HASHES, parse_challenges, refusal_reason
from .reader import Grabbed, Reader, SourceInfo, UnreadableImage
from .redact import redact_url, split_userinfo
from .video import open_stream
from .web import WebClient, is_proxied

SNAPSHOT_FPS = 1.0
"""Polls per second of a snapshot address without an fps cap."""
_IMAGES = frozenset(f"image/{name}" for name in ("jpeg", "jpg", "pjpeg", "png", "webp", "bmp", "x-ms-bmp", "tiff"))
_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")
"""Suffixes of addresses that are snapshots even if their server does not say so."""
_VIDEO_SUFFIXES = (".avi", ".flv", ".m3u8", ".m4v", ".mkv", ".mov", ".mp4", ".mpd", ".mpg", ".ts", ".webm")
_MAX_BYTES = 2**26
_LINE_BYTES = 65536
_HASHES = ("MD5", "SHA-256")


def open_web(url: str, config: CameraConfig) -> Reader:
    """Open an HTTP address: images by this module, everything else by FFmpeg.

    An address with a video's suffix is left to FFmpeg at once: some programs serve only one request and then end.

    Raises:
        SourceError: see `open_images` and `open_stream`.
    """
    if urlsplit(url).path.lower().endswith(_VIDEO_SUFFIXES):
        try:
            return open_stream(url, config)
        except SourceError as exc:
            if exc.fault is SourceFault.AUTH:
                raise _explained(url, config) or exc from None
            raise
    return open_images(url, config) or open_stream(url, config)


def open_images(url: str, config: CameraConfig) -> Reader | None:
    """Open an HTTP address if it answers with images; None if FFmpeg must find out what it is.

    Raises:
        SourceError: the login was refused (fault `AUTH`), or the server did not answer in time (fault `TIMEOUT`).
    """
    if is_proxied(url):
        return None
    client = WebClient(url, config.connect_timeout_s)
    try:
        response = client.get()
    except TimeoutError as exc:
        client.close()
        text = f"{redact_url(url)} cannot be opened: it did not answer within {config.connect_timeout_s:g} s"
        raise SourceError(SourceFault.TIMEOUT, text) from exc
    except (OSError, http.client.HTTPException, UnicodeError):  # FFmpeg reports the reason
        client.close()
        return None
    kind = response.headers.get_content_type() if response.getheader("Content-Type") else ""
    if response.status == 200 and kind.startswith("multipart/"):
        return MultipartReader(client, response, redact_url(url), config)
    if response.status == 200 and (kind in _IMAGES or (_is_named_image(url) and not kind.startswith("image/"))):
        return SnapshotReader(client, response, redact_url(url), config)
    client.close()
    challenges = parse_challenges(client.logins)
    if response.status == 401:
        raise _refused(url, refusal_reason(url, challenges, _HASHES))
    if challenges and not any(challenge.is_known(FFMPEG_HASHES) for challenge in challenges):
        raise _refused(url, refusal_reason(url, challenges))  # the password is right, but FFmpeg must send it again
    return None


class MultipartReader:
    """An open multipart stream. Such a stream never ends by design, so its end counts as a failure.

    Args:
        client: the connection, closed with the reader.
        response: its response, of which nothing is read yet.
        name: name for error messages.
        config: the camera, for its stall timeout.
    """

    def __init__(self, client: WebClient, response: http.client.HTTPResponse, name: str, config: CameraConfig) -> None:
        self.info = SourceInfo(backend="mjpeg", codec="MJPG", finite=False, live=True)
        self._client = client
        self._response = response
        self._name = name
        self._data = b""
        self._shape: tuple[int, ...] | None = None
        self._parts = self._read_parts()
        self._stall_timeout_s = config.stall_timeout_s
        client.set_timeout(config.stall_timeout_s)

    def grab(self) -> Grabbed | None:
        """See `Reader`."""
        try:
            arrived_ns, self._data = next(self._parts)
        except TimeoutError as exc:
            text = f"{self._name} sent no whole picture for {self._stall_timeout_s:g} s"
            raise SourceError(SourceFault.STALLED, text) from exc
        except (OSError, http.client.HTTPException) as exc:
            raise SourceError(SourceFault.CLOSED, f"{self._name} closed the stream") from exc
        return Grabbed(monotonic_ns=arrived_ns)

    def retrieve(self, out: Pixels | None) -> Pixels:
        """See `Reader`. `out` is not used."""
        pixels = _decoded(self._data, self._name)
        if self._shape not in (None, pixels.shape):
            raise SourceError(SourceFault.RESIZED, f"{self._name} changed its frame size or pixel format")
        self._shape = pixels.shape
        return pixels

    def close(self) -> None:
        """See `Reader`."""
        self._response.close()
        self._client.close()

    def _read_parts(self) -> Iterator[tuple[int, bytes]]:
        # A delimiter is any line that begins with two hyphens: many cameras announce another one than they send.
        line = b""
        while True:
            while not line.startswith(b"--"):
                line = self._line()
            delimiter = line.strip()
            kind, length = self._part_header()
            arrived_ns = time.monotonic_ns()
            if length is None:
                data, line = self._until(delimiter)
            else:
                data, line = self._exactly(length), b""
            if data and not kind.startswith(("text/", "application/", "audio/")):
                yield arrived_ns, data

    def _part_header(self) -> tuple[str, int | None]:
        kind, length = "", None
        while line := self._line().strip():
            name, _, value = line.decode("latin-1").partition(":")
            value = value.strip()
            if name.lower() == "content-type":
                kind = value.lower()
            elif name.lower() == "content-length" and value.isascii() and value.isdigit():
                length = int(value)
        return kind, length or None

    def _exactly(self, length: int) -> bytes:
        if length > _MAX_BYTES:
            raise SourceError(
                SourceFault.CODEC, f"{self._name} sends a part of {length} bytes (expected at most {_MAX_BYTES})"
            )
        data = self._response.read(length)
        if len(data) < length:
            raise http.client.IncompleteRead(data)
        return data

    def _until(self, delimiter: bytes) -> tuple[bytes, bytes]:
        data = bytearray()
        while not (line := self._line()).startswith(delimiter):
            data += line
            if len(data) > _MAX_BYTES:
                raise SourceError(
                    SourceFault.CODEC,
                    f"{self._name} sends a part of more than {_MAX_BYTES} bytes, the most that is read",
                )
        return bytes(data.removesuffix(b"\n").removesuffix(b"\r")), line

    def _line(self) -> bytes:
        line = self._response.readline(_LINE_BYTES)
        if not line:
            raise http.client.IncompleteRead(b"")
        return line


class SnapshotReader:
    """An address that answers each request with one image. In lossless mode, it counts as a file with one image.

    Args:
        client: the connection, which is kept between polls; closed with the reader.
        response: the first response, of which nothing is read yet.
        name: name for error messages.
        config: the camera, for its mode, maximum frame rate and timeouts.
    """

    def __init__(self, client: WebClient, response: http.client.HTTPResponse, name: str, config: CameraConfig) -> None:
        self._client = client
        self._response: http.client.HTTPResponse | None = response
        self._name = name
        self._data = b""
        self._due_s = time.monotonic()
        self._interval_s = 1 / (config.fps or SNAPSHOT_FPS)
        self._timeout_s = config.stall_timeout_s
        live = config.mode is CaptureMode.LIVE
        self.info = SourceInfo(
            backend="snapshot",
            fps=1 / self._interval_s if live else None,
            frame_count=None if live else 1,
            finite=not live,
            live=live,
            paced=live,
        )
        self._arrived_ns = time.monotonic_ns()
        client.set_timeout(config.stall_timeout_s)

    def grab(self) -> Grabbed | None:
        """See `Reader`."""
        if self._response is None:
            if self.info.finite:
                return None
            self._poll()
        response, self._response = self._response, None
        assert response is not None
        try:
            self._data = response.read(_MAX_BYTES + 1)
        except TimeoutError as exc:
            raise self._silent() from exc
        except (OSError, http.client.HTTPException) as exc:
            raise SourceError(SourceFault.CLOSED, f"{self._name} closed the connection within an image") from exc
        if len(self._data) > _MAX_BYTES:
            raise SourceError(SourceFault.CODEC, f"{self._name} sends more than {_MAX_BYTES} bytes for one image")
        return Grabbed(monotonic_ns=self._arrived_ns)

    def retrieve(self, out: Pixels | None) -> Pixels:
        """See `Reader`. `out` is not used."""
        return _decoded(self._data, self._name)

    def close(self) -> None:
        """See `Reader`."""
        if self._response is not None:
            self._response.close()
        self._client.close()

    def _poll(self) -> None:
        now_s = time.monotonic()
        self._due_s = max(self._due_s + self._interval_s, now_s)
        time.sleep(self._due_s - now_s)
        try:
            self._response = self._client.get()
        except TimeoutError as exc:
            raise self._silent() from exc
        except (OSError, http.client.HTTPException) as exc:
            raise SourceError(SourceFault.CLOSED, f"{self._name} does not answer any more: {exc}") from exc
        self._arrived_ns = time.monotonic_ns()
        if self._response.status == 401:
            raise SourceError(SourceFault.AUTH, f"{self._name} cannot be read: it rejected the user or password (401)")
        if self._response.status != 200:
            status = f"{self._response.status} {self._response.reason}".strip()
            raise SourceError(SourceFault.REFUSED, f"{self._name} answered with an error [{status}]")

    def _silent(self) -> SourceError:
        return SourceError(SourceFault.STALLED, f"{self._name} sent no whole picture for {self._timeout_s:g} s")


def _decoded(data: bytes, name: str) -> Pixels:
    try:
        return decode(data.lstrip(b"\r\n"))
    except ValueError as exc:
        raise UnreadableImage(f"an image of {name}: {exc}") from exc


def _is_named_image(url: str) -> bool:
    return urlsplit(url).path.lower().endswith(_IMAGE_SUFFIXES)


def _explained(url: str, config: CameraConfig) -> SourceError | None:
    # FFmpeg does not show the logins that an HTTP server offers. They are asked for without the password: repeated
    # wrong ones lock cameras.
    scheme, _, rest = split_userinfo(url)
    client = WebClient(scheme + rest, config.connect_timeout_s)
    try:
        status = client.get().status
    except (OSError, http.client.HTTPException, UnicodeError):
        return None
    finally:
        client.close()
    return _refused(url, refusal_reason(url, parse_challenges(client.logins))) if status == 401 else None


def _refused(url: str, reason: str) -> SourceError:
    return SourceError(SourceFault.AUTH, f"{redact_url(url)} cannot be opened: {reason}")
