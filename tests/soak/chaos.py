"""A chaos run: starts the service, injects random faults around it, heals them, stops it, and collects the evidence."""

import json
import random
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ..daemon.service_rig import ServiceProcess, processes_of, running
from ..deadlines import scaled
from .faults import Cameras, Faults
from .measure import Sample, command_of, processes_with, sample
from .subscribe import Received
from .subscribers import SubscriberProcess

PACE_S = 3.0
"""Mean time between two faults; a short run has less, so that it can inject each kind."""

SAMPLE_S = 2.0
WATCHDOG_S = 6.0
RECOVERY_S = 90.0
"""Deadline for all cameras to run once faults end: the service retries a camera that failed often after 30 s."""

_PROGRAM = Path(__file__).with_name("faulty_service.py")


@dataclass(frozen=True)
class Census:
    """The service's resources while nothing is wrong: the same before and after the faults, unless something leaks."""

    sample: Sample
    children: int


@dataclass(frozen=True)
class Outcome:
    """The evidence of a run.

    Attributes:
        seed, minutes: the run's settings.
        secret: the password in the cameras' addresses, which no text may contain.
        began_s, ended_s: `time.monotonic()` at the first fault, and when faults ended.
        faults: how many of each kind were injected.
        hung_at_s: when the engine was made to hang.
        samples: the service's resources while faults were injected.
        before, after: its resources before and after that, with everything healed.
        received: what each subscriber received, by its name.
        survivors: subscribers that ran until the end.
        subscriber_errors: what subscribers printed.
        fed_at_s: when the watchdog was fed.
        log: the lines of the service's log.
        texts: everything that was output anywhere: log, records, arguments of processes.
        exit_code, exit_s: of the service, and the time from SIGTERM to its exit.
        left_behind: processes that outlived it.
    """

    seed: int
    minutes: float
    secret: str
    began_s: float
    ended_s: float
    faults: Counter[str]
    hung_at_s: list[float]
    samples: list[Sample]
    before: Census
    after: Census
    received: dict[str, list[Received]]
    survivors: set[str]
    subscriber_errors: str
    fed_at_s: list[float]
    log: list[dict[str, object]]
    texts: list[str]
    exit_code: int
    exit_s: float
    left_behind: list[int]


@dataclass
class _Schedule:
    """Actions that are due later."""

    entries: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def add(self, after_s: float, action: Callable[[], None]) -> None:
        self.entries.append((time.monotonic() + after_s, action))

    def run_due(self, now_s: float) -> None:
        due = [action for at_s, action in self.entries if at_s <= now_s]
        self.entries = [entry for entry in self.entries if entry[0] > now_s]
        for action in due:
            action()

    def run_all(self) -> None:
        self.run_due(float("inf"))


class ChaosRun:
    """One run; call `play` once.

    Args:
        folder: an empty folder, its path short enough for a Unix socket in it.
        minutes: how long faults are injected.
        seed: determines the faults and their times.
    """

    def __init__(self, folder: Path, minutes: float, seed: int) -> None:
        self._folder = folder
        self._minutes = minutes
        self._seed = seed
        self._rng = random.Random(seed)
        self._secret = f"s3cret-{seed}"
        self._mark = f"SOAK_RUN={secrets.token_hex(8)}"
        self._schedule = _Schedule()
        self._good = SubscriberProcess("good", folder)
        self._harmed = tuple(SubscriberProcess(name, folder, pause_s) for name, pause_s in _HARMED)
        self._received: dict[str, list[Received]] = {one.name: [] for one in (self._good, *self._harmed)}
        self._samples: list[Sample] = []
        self._fed_at_s: list[float] = []
        self._commands: set[str] = set()
        self._injected: Counter[str] = Counter()

    def play(self) -> Outcome:
        """Run from start to stop."""
        with ExitStack() as stack:
            cameras = Cameras(self._folder, self._secret)
            stack.callback(cameras.power_off)
            for subscriber in (self._good, *self._harmed):
                stack.callback(subscriber.kill)
            ipc, tcp = f"ipc://{self._folder}/features.sock", _free_tcp_endpoint()
            self._good.start(ipc)
            request = self._folder / "fault"
            name, _, value = self._mark.partition("=")
            environment = {
                name: value,
                "SOAK_FAULT": str(request),
                "RETINAD_PUBLISH__ENDPOINTS": json.dumps([ipc, tcp]),
                "RETINAD_PUBLISH__HEARTBEAT_S": "1.0",
            }
            if self._minutes < 2:  # images bypass the heap: its free space would hide what leaks in a short run
                environment["MALLOC_MMAP_THRESHOLD_"] = "16384"
            config = cameras.configure()
            service = stack.enter_context(
                running(config, watchdog_s=WATCHDOG_S, env=environment, program=(str(_PROGRAM),))
            )
            service.notified("READY=1")
            harmed = tuple(zip(self._harmed, (tcp, ipc, tcp), strict=True))
            for subscriber, endpoint in harmed:
                subscriber.start(endpoint)
            faults = Faults(service, cameras, harmed, request, self._schedule.add, self._rng)
            return self._inject_and_stop(service, cameras, faults)

    def _inject_and_stop(self, service: ServiceProcess, cameras: Cameras, faults: Faults) -> Outcome:
        for fault in faults.all:  # whatever happens for the first time allocates memory for the first time
            fault()
            self._watch(service, 0.5)
        before = self._recover(service, cameras)
        began_s = time.monotonic()
        self._samples.clear()
        self._inject_until(began_s + 60 * self._minutes, service, faults)
        ended_s = time.monotonic()
        after = self._recover(service, cameras)
        faults.stop_capture()
        faults.engine_hangs()
        exit_code, exit_s = service.stop()
        self._wait_for_ends(cameras)
        self._collect()
        subscribers = (self._good, *self._harmed)
        return Outcome(
            seed=self._seed,
            minutes=self._minutes,
            secret=self._secret,
            began_s=began_s,
            ended_s=ended_s,
            faults=self._injected,
            hung_at_s=faults.hung_at_s,
            samples=self._samples,
            before=before,
            after=after,
            received=self._received,
            survivors={subscriber.name for subscriber in subscribers if subscriber.alive},
            subscriber_errors="".join(subscriber.errors for subscriber in subscribers),
            fed_at_s=self._fed_at_s,
            log=[json.loads(line) for line in service.log.read_text().splitlines()],
            texts=[*self._commands, *(file.read_text() for file in self._folder.glob("*.jsonl"))],
            exit_code=exit_code,
            exit_s=exit_s,
            left_behind=processes_with(self._mark),
        )

    def _inject_until(self, end_s: float, service: ServiceProcess, faults: Faults) -> None:
        """Inject shuffled decks of all faults, at least one whole deck."""
        pace_s = min(PACE_S, 60 * self._minutes / (1.5 * len(faults.all)))
        reported_s = time.monotonic()
        deck: list[Callable[[], None]] = []
        while (now_s := time.monotonic()) < end_s or len(self._injected) < len(faults.all):
            if not deck:
                deck = list(faults.all)
                self._rng.shuffle(deck)
            fault = deck.pop()
            fault()
            self._injected[fault.__name__] += 1
            self._watch(service, min(self._rng.expovariate(1 / pace_s), max(end_s - now_s, pace_s)))
            if now_s - reported_s >= 60:
                reported_s = now_s
                last = self._samples[-1]
                print(f"{(end_s - now_s) / 60:5.1f} min left, {self._injected.total()} faults, {last}", flush=True)

    def _watch(self, service: ServiceProcess, seconds: float) -> None:
        """Let time pass while actions fall due and the service is observed."""
        end_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < end_s:
            self._schedule.run_due(now_s)
            self._look(service, now_s)
            time.sleep(max(0.0, min(0.1, end_s - time.monotonic())))

    def _look(self, service: ServiceProcess, now_s: float) -> None:
        assert service.process.poll() is None, f"it ended; its log:\n{service.log.read_text()[-4000:]}"
        self._fed_at_s += [now_s for text in service.notifications_so_far() if text == "WATCHDOG=1"]
        if not self._samples or now_s - self._samples[-1].at_s >= SAMPLE_S:
            self._samples.append(sample(service.process.pid))
            self._commands |= {" ".join(command_of(pid)) for pid in processes_with(self._mark)}
            self._collect()

    def _collect(self) -> None:
        for subscriber in (self._good, *self._harmed):
            if subscriber.file.exists():
                self._received[subscriber.name] += subscriber.new()

    def _recover(self, service: ServiceProcess, cameras: Cameras) -> Census:
        """End all faults, and wait until all cameras run."""
        self._schedule.run_all()
        cameras.heal()
        deadline_s = time.monotonic() + scaled(RECOVERY_S)
        self._watch(service, 6.0)  # longer than it takes to notice a frozen camera, or to drop a frozen subscriber
        while self._not_running(cameras):
            assert time.monotonic() < deadline_s, f"not running: {self._not_running(cameras)}"
            self._watch(service, 0.5)
        self._watch(service, 3.0)
        return Census(sample(service.process.pid), len(processes_of(service.process.pid)))

    def _not_running(self, cameras: Cameras) -> list[str]:
        self._collect()
        states = {record.camera: record.state for record in self._received["good"] if record.kind == "status"}
        return [name for name in cameras.names if states.get(name) != "running"]

    def _wait_for_ends(self, cameras: Cameras) -> None:
        deadline_s = time.monotonic() + scaled(5)
        while time.monotonic() < deadline_s:
            self._collect()
            last = {record.camera: record.kind for record in self._received["good"] if record.camera}
            if all(last.get(name) == "end" for name in cameras.names):
                return
            time.sleep(0.05)


_HARMED = (("first", 0.0), ("second", 0.0), ("slow", 0.4))


def _free_tcp_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"tcp://127.0.0.1:{found.getsockname()[1]}"
