"""Reads V4L2 devices (USB cameras) through OpenCV's V4L2 backend."""

import errno
import glob
import os
import re
import time

from ..config import CameraConfig
from ..errors import SourceError, SourceFault
from ..frames import Pixels
from . import opencv
from .opencv import CaptureBackend, Property, VideoCapture
from .reader import Grabbed, SourceInfo, UnreadableImage
from .v4l2_capabilities import query, siblings

_OLDEST_MS = 5000
"""Age, in seconds, above which a driver's timestamp is ignored: the few buffers of a device hold less time."""
_BUSY = "another program uses it, or it is not a camera"


def open_device(path: str, config: CameraConfig) -> "DeviceReader":
    """Open a device. A link (`/dev/v4l/by-id/...`) is resolved again each time: replugging changes device numbers.

    Raises:
        SourceError: the device cannot be used (fault `MISSING`, `PERMISSION` or `UNREADABLE`); the message says why.
    """
    opencv.set_device_timeout(config.stall_timeout_s)
    target = os.path.realpath(path)
    check_device(path, target)
    capture = VideoCapture(target, CaptureBackend.V4L2, {}, path, SourceFault.REFUSED, _BUSY)
    return DeviceReader(path, config, capture)


class DeviceReader:
    """An open device.

    Args:
        path: name for error messages.
        config: requested pixel format, size and rate, set in this order: each depends on the ones before.
        capture: the device as opened by OpenCV; closed with the reader.
    """

    def __init__(self, path: str, config: CameraConfig, capture: VideoCapture) -> None:
        self._path = path
        self._capture = capture
        for prop, value in _requested(config).items():
            capture.set(prop, value)
        got = {prop: capture.get(prop) for prop in (Property.FOURCC, Property.WIDTH, Property.HEIGHT, Property.FPS)}
        fps = got[Property.FPS]
        self.info = SourceInfo(
            backend="v4l2",
            width=int(got[Property.WIDTH] or 0),
            height=int(got[Property.HEIGHT] or 0),
            fps=fps if fps is not None and fps > 0 else None,
            codec=opencv.fourcc_text(got[Property.FOURCC]),
            finite=False,
            live=True,
            notes=(*_renaming(path), *_differences(config, got)),
        )

    def grab(self) -> Grabbed | None:
        """See `Reader`."""
        if not self._capture.grab():
            if not os.path.exists(self._path):
                raise SourceError(SourceFault.MISSING, f"{self._path} stopped: it was unplugged")
            reason = "no frame arrived; it was unplugged, or has too little USB bandwidth (try fourcc = 'MJPG')"
            raise SourceError(SourceFault.STALLED, f"{self._path} stopped: {reason}")
        return Grabbed(monotonic_ns=self._driver_ns())

    def _driver_ns(self) -> int | None:
        # Some drivers use another clock than the monotonic one, or none: then it is no time in the last seconds.
        time_ms = self._capture.get(Property.POSITION_MS)
        if time_ms is None or not 0 <= time.monotonic() * 1000 - time_ms <= _OLDEST_MS:
            return None
        return round(time_ms * 1e6)

    def retrieve(self, out: Pixels | None) -> Pixels:
        """See `Reader`."""
        pixels = self._capture.retrieve(out)
        if pixels is None:
            raise UnreadableImage(f"a frame of {self._path} cannot be decoded")
        return pixels

    def close(self) -> None:
        """See `Reader`."""
        self._capture.close()


def check_device(path: str, target: str) -> None:
    """Open and close a device file to find out why it cannot be opened or read, which OpenCV does not report.

    Raises:
        SourceError: the device cannot be used (fault `MISSING`, `PERMISSION` or `UNREADABLE`); the message says why.
    """
    try:
        os.close(os.open(target, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except FileNotFoundError as exc:
        raise SourceError(SourceFault.MISSING, f"there is no device {path} ({_present()})") from exc
    except PermissionError as exc:
        advice = "add the user to group video (usermod -aG video USER; SupplementaryGroups=video in a systemd unit)"
        raise SourceError(SourceFault.PERMISSION, f"this user may not open device {path}: {advice}") from exc
    except OSError as exc:
        fault = SourceFault.MISSING if exc.errno in (errno.ENXIO, errno.ENODEV) else SourceFault.UNREADABLE
        raise SourceError(fault, f"device {path} cannot be opened: {exc.strerror}") from exc
    capability = query(target)
    if capability is not None and not capability.captures:
        right = siblings(target, capability)
        advice = f"use {' or '.join(right)}" if right else "no other node of this device delivers images"
        text = f"device {path} ({capability.card}) is no camera: it {capability}; {advice}"
        raise SourceError(SourceFault.UNREADABLE, text)


def _present() -> str:
    found = sorted(glob.glob("/dev/v4l/by-id/*")) or sorted(glob.glob("/dev/video*"))
    return f"found: {', '.join(found)}" if found else "no video device was found"


def _renaming(path: str) -> tuple[str, ...]:
    if not re.fullmatch(r"/dev/video[0-9]+", path):
        return ()
    links = [link for link in sorted(glob.glob("/dev/v4l/by-id/*")) if os.path.realpath(link) == path]
    better = links[0] if links else "its link in /dev/v4l/by-id or by-path"
    return (f"the number of {path} can change when cameras are replugged: {better} is stable",)


def _requested(config: CameraConfig) -> dict[Property, float]:
    requested: dict[Property, float] = {}
    if config.fourcc is not None:
        requested[Property.FOURCC] = opencv.fourcc_number(config.fourcc)
    if config.size is not None:
        requested[Property.WIDTH], requested[Property.HEIGHT] = config.size
    if config.fps is not None:
        requested[Property.FPS] = config.fps
    return requested


def _differences(config: CameraConfig, got: dict[Property, float | None]) -> list[str]:
    notes = []
    size = (int(got[Property.WIDTH] or 0), int(got[Property.HEIGHT] or 0))
    codec = opencv.fourcc_text(got[Property.FOURCC])
    if config.fourcc is not None and codec != config.fourcc.rstrip():
        notes.append(f"requested {config.fourcc}, got {codec or 'an unknown format'}")
    if config.size is not None and size != config.size:
        notes.append(f"requested {config.size[0]}x{config.size[1]}, got {size[0]}x{size[1]}")
    fps = got[Property.FPS]
    if config.fps is not None and (fps is None or abs(fps - config.fps) > 0.5):
        notes.append(f"requested {config.fps:g} frames/s, got {'an unknown rate' if fps is None else f'{fps:g}'}")
    return notes
