"""The faults that a chaos run injects: into cameras, subscribers, the config and the engine."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ..daemon.service_rig import ServiceProcess, camera, processes_of, write_config
from .cameras import SIZES, ImageFolder, NetworkCamera
from .faulty_service import FAULTS
from .measure import command_of
from .subscribers import SubscriberProcess

STEADY = ("steady-live", "steady-lossless")
"""Cameras that no fault touches: frames that they lose were lost by the service."""

SCENES = ("scene-a", "scene-b")
SHIFTING = "shifting"
FPS = 3

Schedule = Callable[[float, Callable[[], None]], None]
"""Calls a function after a number of seconds."""


class Cameras:
    """The cameras of a run: two that no fault touches, and six others.

    Args:
        folder: where the config and the images are.
        secret: the password in the network cameras' addresses.
    """

    def __init__(self, folder: Path, secret: str) -> None:
        self.network = (NetworkCamera(FPS), NetworkCamera(FPS))
        self.images = ImageFolder(folder / "images", count=30)
        self._folder = folder
        self._secret = secret

    @property
    def names(self) -> tuple[str, ...]:
        return (*STEADY, *SCENES, "net-0", "net-1", "folder", SHIFTING)

    def configure(self, *, shifting: tuple[int, int] | None = SIZES[0], extra: str = "") -> Path:
        """Write the config, with the shifting camera at this size, or without that camera."""
        timeouts = {"connect_timeout_s": 2.0, "stall_timeout_s": 2.0}
        tables = [
            camera(STEADY[0], _scene(SIZES[0])),
            camera(STEADY[1], _scene(SIZES[0]), mode="lossless", fps=FPS),
            *(camera(name, _scene(SIZES[0]), **timeouts) for name in SCENES),
            *(
                camera(f"net-{number}", one.source("chaos", self._secret), **timeouts)
                for number, one in enumerate(self.network)
            ),
            camera("folder", self.images.path, fps=FPS, loop=0, **timeouts),
            *([camera(SHIFTING, _scene(shifting), **timeouts)] if shifting else ()),
        ]
        return write_config(self._folder, "".join(tables) + extra, publish="buffer_mb = 1")

    def heal(self) -> None:
        """Undo all faults of cameras and images."""
        for one in self.network:
            one.frozen, one.size = False, SIZES[0]
            one.power_on()
        for number in range(self.images.count):
            self.images.restore(number)

    def power_off(self) -> None:
        for one in self.network:
            one.power_off()


class Faults:
    """All faults, as methods without arguments.

    Args:
        service: the service under test.
        cameras: its cameras.
        subscribers: the subscribers that faults may harm, with their endpoints.
        request: the file that asks the engine to fail.
        schedule: ends a fault later.
        rng: makes all random choices.
    """

    def __init__(
        self,
        service: ServiceProcess,
        cameras: Cameras,
        subscribers: tuple[tuple[SubscriberProcess, str], ...],
        request: Path,
        schedule: Schedule,
        rng: random.Random,
    ) -> None:
        self._service = service
        self._cameras = cameras
        self._subscribers = subscribers
        self._request = request
        self._schedule = schedule
        self._rng = rng
        self.hung_at_s: list[float] = []

    @property
    def all(self) -> tuple[Callable[[], None], ...]:
        cameras = (self.kill_capture, self.stop_capture, self.cut_power, self.freeze_camera, self.resize_camera)
        images = (self.damage_image, self.resize_image)
        subscribers = (self.freeze_subscriber, self.restart_subscriber)
        engine = (self.engine_raises, self.engine_hangs, self.engine_runs_out_of_memory, self.engine_gives_nan)
        return (*cameras, *images, *subscribers, self.good_reloads, self.bad_reloads, *engine)

    def kill_capture(self) -> None:
        """A decoder crashes."""
        self._signal_capture(signal.SIGKILL)

    def stop_capture(self) -> None:
        """A decoder hangs, until the service replaces it."""
        self._signal_capture(signal.SIGSTOP)

    def cut_power(self) -> None:
        one = self._rng.choice(self._cameras.network)
        one.power_off()
        self._schedule(self._rng.uniform(0.5, 6), one.power_on)

    def freeze_camera(self) -> None:
        one = self._rng.choice(self._cameras.network)
        one.frozen = True
        self._schedule(self._rng.uniform(0.5, 6), lambda: setattr(one, "frozen", False))

    def resize_camera(self) -> None:
        """Another image size, with or without a new connection."""
        one = self._rng.choice(self._cameras.network)
        one.size = self._rng.choice([size for size in SIZES if size != one.size])
        if self._rng.random() < 0.5:
            one.power_off()
            one.power_on()

    def damage_image(self) -> None:
        self._change_image(self._cameras.images.damage)

    def resize_image(self) -> None:
        self._change_image(self._cameras.images.resize)

    def freeze_subscriber(self) -> None:
        """For less or more time than the service takes to disconnect it."""
        subscriber, _ = self._rng.choice(self._subscribers)
        subscriber.freeze()
        self._schedule(self._rng.uniform(1, 10), subscriber.thaw)

    def restart_subscriber(self) -> None:
        subscriber, endpoint = self._rng.choice(self._subscribers)
        subscriber.kill()
        subscriber.start(endpoint)

    def good_reloads(self) -> None:
        """Up to eight reloads within a moment, each with another config."""
        for _ in range(self._rng.randint(1, 8)):
            self._cameras.configure(shifting=self._rng.choice((*SIZES, None)))
            self._reload()
        self._cameras.configure()
        self._reload()

    def bad_reloads(self) -> None:
        """Invalid or missing configs: the old one stays in use."""
        for _ in range(self._rng.randint(1, 8)):
            config = self._cameras.configure(shifting=None, extra=self._rng.choice(_BAD))
            if self._rng.random() < 0.2:
                config.unlink()
            self._reload()
        time.sleep(0.5)  # else the service could read the good config below in place of all of these
        self._cameras.configure()
        self._reload()

    def engine_raises(self) -> None:
        self._request_fault("raises")

    def engine_hangs(self) -> None:
        self.hung_at_s.append(time.monotonic())
        self._request_fault("hangs")

    def engine_runs_out_of_memory(self) -> None:
        self._request_fault("runs_out_of_memory")

    def engine_gives_nan(self) -> None:
        self._request_fault("gives_nan")

    def _request_fault(self, fault: str) -> None:
        assert fault in {known.__name__ for known in FAULTS}
        draft = self._request.with_suffix(".draft")
        draft.write_text(fault)
        draft.replace(self._request)

    def _signal_capture(self, number: signal.Signals) -> None:
        victims = {*SCENES, "net-0", "net-1", "folder"}
        pids = [pid for pid in processes_of(self._service.process.pid) if victims & set(command_of(pid)[-1:])]
        if pids:
            os.kill(self._rng.choice(pids), number)

    def _change_image(self, change: Callable[[int], None]) -> None:
        number = self._rng.randrange(self._cameras.images.count)
        change(number)
        self._schedule(15, lambda: self._cameras.images.restore(number))

    def _reload(self) -> None:
        self._service.process.send_signal(signal.SIGHUP)
        time.sleep(self._rng.uniform(0, 0.05))


_BAD = (
    "[[camera]]\nname = 3\n",
    "[[camera]]\nname = 'steady-live'\nsource = 'synthetic:'\n",
    "[[camera]]\nname = 'new'\nsource = 'gopher://host/x'\n",
    "[[camera]\n",
    "[[camera]]\nname = 'new'\nsource = 'synthetic:'\nqueue_frames = 0\n",
)


def _scene(size: tuple[int, int]) -> str:
    return f"synthetic:?fps={FPS}&width={size[0]}&height={size[1]}"
