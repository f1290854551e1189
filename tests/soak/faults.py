"""What is done to the service, each thing by itself: to cameras, subscribers, the config and the engine."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ..daemon.service_rig import ServiceProcess, camera, processes_of, write_config
from .cameras import SIZES, NetworkCamera, PictureFolder
from .faulty_service import FAULTS
from .listeners import Listener
from .measure import command_of

STEADY = ("steady-live", "steady-lossless")
"""Cameras that nothing is done to: what they lose, the service lost."""

SCENES = ("scene-a", "scene-b")
SHIFTING = "shifting"
FPS = 3

Later = Callable[[float, Callable[[], None]], None]
"""Does something after so many seconds."""


class Cameras:
    """The cameras of the run: two that are left alone, and six that are not.

    Args:
        folder: where the config and the pictures are.
        secret: the password in the network cameras' addresses.
    """

    def __init__(self, folder: Path, secret: str) -> None:
        self.network = (NetworkCamera(FPS), NetworkCamera(FPS))
        self.pictures = PictureFolder(folder / "pictures", count=30)
        self._folder = folder
        self._secret = secret

    @property
    def names(self) -> tuple[str, ...]:
        return (*STEADY, *SCENES, "net-0", "net-1", "folder", SHIFTING)

    def configure(self, *, shifting: tuple[int, int] | None = SIZES[0], extra: str = "") -> Path:
        """Write the config, with the shifting camera at this size, or without it."""
        patience = {"connect_timeout_s": 2.0, "stall_timeout_s": 2.0}
        tables = [
            camera(STEADY[0], _scene(SIZES[0])),
            camera(STEADY[1], _scene(SIZES[0]), mode="lossless", fps=FPS),
            *(camera(name, _scene(SIZES[0]), **patience) for name in SCENES),
            *(
                camera(f"net-{number}", one.source("chaos", self._secret), **patience)
                for number, one in enumerate(self.network)
            ),
            camera("folder", self.pictures.path, fps=FPS, loop=0, **patience),
            *([camera(SHIFTING, _scene(shifting), **patience)] if shifting else ()),
        ]
        return write_config(self._folder, "".join(tables) + extra, publish="buffer_mb = 1")

    def heal(self) -> None:
        """All as it was in the beginning."""
        for one in self.network:
            one.frozen, one.size = False, SIZES[0]
            one.power_on()
        for number in range(self.pictures.count):
            self.pictures.mend(number)

    def power_off(self) -> None:
        for one in self.network:
            one.power_off()


class Faults:
    """Everything that is done, as functions without arguments.

    Args:
        service: whom it is done to.
        cameras, listeners: what it has to do with; the listeners are those that may be harmed, with their endpoints.
        fault: the file that tells the engine to fail.
        later: how an end is put to what is done.
        rng: decides all that is left to chance.
    """

    def __init__(
        self,
        service: ServiceProcess,
        cameras: Cameras,
        listeners: tuple[tuple[Listener, str], ...],
        fault: Path,
        later: Later,
        rng: random.Random,
    ) -> None:
        self._service = service
        self._cameras = cameras
        self._listeners = listeners
        self._fault = fault
        self._later = later
        self._rng = rng
        self.hung_at_s: list[float] = []

    @property
    def all(self) -> tuple[Callable[[], None], ...]:
        cameras = (self.kill_capture, self.stop_capture, self.cut_power, self.freeze_camera, self.resize_camera)
        pictures = (self.damage_picture, self.resize_picture)
        listeners = (self.stop_listener, self.kill_listener)
        engine = (self.engine_raises, self.engine_hangs, self.engine_runs_out_of_memory, self.engine_gives_nan)
        return (*cameras, *pictures, *listeners, self.good_reloads, self.bad_reloads, *engine)

    def kill_capture(self) -> None:
        """A decoder crashes."""
        self._signal_capture(signal.SIGKILL)

    def stop_capture(self) -> None:
        """A decoder hangs, until the service gives it up."""
        self._signal_capture(signal.SIGSTOP)

    def cut_power(self) -> None:
        one = self._rng.choice(self._cameras.network)
        one.power_off()
        self._later(self._rng.uniform(0.5, 6), one.power_on)

    def freeze_camera(self) -> None:
        one = self._rng.choice(self._cameras.network)
        one.frozen = True
        self._later(self._rng.uniform(0.5, 6), lambda: setattr(one, "frozen", False))

    def resize_camera(self) -> None:
        """With or without a new connection."""
        one = self._rng.choice(self._cameras.network)
        one.size = self._rng.choice(SIZES)
        if self._rng.random() < 0.5:
            one.power_off()
            one.power_on()

    def damage_picture(self) -> None:
        self._spoil(self._cameras.pictures.damage)

    def resize_picture(self) -> None:
        self._spoil(self._cameras.pictures.resize)

    def stop_listener(self) -> None:
        """For less or for more than it takes until the service disconnects it."""
        listener, _ = self._rng.choice(self._listeners)
        listener.freeze()
        self._later(self._rng.uniform(1, 10), listener.thaw)

    def kill_listener(self) -> None:
        listener, endpoint = self._rng.choice(self._listeners)
        listener.kill()
        listener.start(endpoint)

    def good_reloads(self) -> None:
        """Up to eight in a moment, each with another config."""
        for _ in range(self._rng.randint(1, 8)):
            self._cameras.configure(shifting=self._rng.choice((*SIZES, None)))
            self._reload()
        self._cameras.configure()
        self._reload()

    def bad_reloads(self) -> None:
        """The old config stays, whatever is wrong with the new one."""
        for _ in range(self._rng.randint(1, 8)):
            config = self._cameras.configure(shifting=None, extra=self._rng.choice(_BAD))
            if self._rng.random() < 0.2:
                config.unlink()
            self._reload()
        time.sleep(0.5)  # so that the good one is not read in place of them all
        self._cameras.configure()
        self._reload()

    def engine_raises(self) -> None:
        self._order("raises")

    def engine_hangs(self) -> None:
        self.hung_at_s.append(time.monotonic())
        self._order("hangs")

    def engine_runs_out_of_memory(self) -> None:
        self._order("runs_out_of_memory")

    def engine_gives_nan(self) -> None:
        self._order("gives_nan")

    def _order(self, fault: str) -> None:
        assert fault in {known.__name__ for known in FAULTS}
        draft = self._fault.with_suffix(".draft")
        draft.write_text(fault)
        draft.replace(self._fault)

    def _signal_capture(self, number: signal.Signals) -> None:
        victims = {*SCENES, "net-0", "net-1", "folder"}
        pids = [pid for pid in processes_of(self._service.process.pid) if victims & set(command_of(pid)[-1:])]
        if pids:
            os.kill(self._rng.choice(pids), number)

    def _spoil(self, how: Callable[[int], None]) -> None:
        number = self._rng.randrange(self._cameras.pictures.count)
        how(number)
        self._later(15, lambda: self._cameras.pictures.mend(number))

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
