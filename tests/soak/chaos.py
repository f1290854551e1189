"""A run of the service with everything going wrong around it: started, harmed at random, healed, stopped, reported."""

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
from .faults import Cameras, Faults
from .listen import Seen
from .listeners import Listener
from .measure import Sample, command_of, processes_with, sample

PACE_S = 3.0
"""Between two blows, in the mean."""

SAMPLE_S = 2.0
WATCHDOG_S = 6.0
PATIENCE_S = 90.0
"""Until all is well again once nothing is done any more: a camera that failed often is tried again after 30 s."""

_PROGRAM = Path(__file__).with_name("faulty_service.py")


@dataclass(frozen=True)
class Census:
    """What the service has, once all is well: the same in the beginning and at the end, if nothing is left open."""

    sample: Sample
    children: int


@dataclass(frozen=True)
class Outcome:
    """All that is known of a run.

    Attributes:
        seed, minutes: what it was.
        secret: the password in the cameras' addresses, which is in no text.
        began_s, ended_s: `time.monotonic()` of the first blow and of the last.
        blows: how many of each kind.
        hung_at_s: when the engine was made to hang.
        samples: of the service, while it was harmed.
        before, after: what it had before and after, at peace.
        seen: what each listener saw, by name.
        survivors: listeners that lived to the end.
        listener_errors: what listeners printed.
        fed_at_s: when the watchdog was fed.
        log: the service's log, by line.
        texts: everything that was said anywhere: the log, the records, the arguments of processes.
        exit_code, exit_s: of the service, and how long after it was told to stop.
        left_behind: processes that were there after it.
    """

    seed: int
    minutes: float
    secret: str
    began_s: float
    ended_s: float
    blows: Counter[str]
    hung_at_s: list[float]
    samples: list[Sample]
    before: Census
    after: Census
    seen: dict[str, list[Seen]]
    survivors: set[str]
    listener_errors: str
    fed_at_s: list[float]
    log: list[dict[str, object]]
    texts: list[str]
    exit_code: int
    exit_s: float
    left_behind: list[int]


@dataclass
class _Agenda:
    """What is to be done later."""

    entries: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def add(self, after_s: float, action: Callable[[], None]) -> None:
        self.entries.append((time.monotonic() + after_s, action))

    def do_due(self, now_s: float) -> None:
        due = [action for at_s, action in self.entries if at_s <= now_s]
        self.entries = [entry for entry in self.entries if entry[0] > now_s]
        for action in due:
            action()


class Run:
    """One run. `play` is all there is to call.

    Args:
        folder: an empty folder, its path short enough for a socket in it.
        minutes: how long blows fall.
        seed: which blows, when.
    """

    def __init__(self, folder: Path, minutes: float, seed: int) -> None:
        self._folder = folder
        self._minutes = minutes
        self._seed = seed
        self._rng = random.Random(seed)
        self._secret = f"s3cret-{seed}"
        self._mark = f"SOAK_RUN={secrets.token_hex(8)}"
        self._agenda = _Agenda()
        self._good = Listener("good", folder)
        self._harmed = tuple(Listener(name, folder, pause_s) for name, pause_s in _HARMED)
        self._seen: dict[str, list[Seen]] = {listener.name: [] for listener in (self._good, *self._harmed)}
        self._samples: list[Sample] = []
        self._fed_at_s: list[float] = []
        self._commands: set[str] = set()
        self._blows: Counter[str] = Counter()

    def play(self) -> Outcome:
        """Run, from start to stop."""
        with ExitStack() as stack:
            cameras = Cameras(self._folder, self._secret)
            stack.callback(cameras.power_off)
            for listener in (self._good, *self._harmed):
                stack.callback(listener.kill)
            ipc, tcp = f"ipc://{self._folder}/features.sock", _free_tcp_endpoint()
            self._good.start(ipc)
            fault = self._folder / "fault"
            name, _, value = self._mark.partition("=")
            environment = {
                name: value,
                "SOAK_FAULT": str(fault),
                "RETINAD_PUBLISH__ENDPOINTS": json.dumps([ipc, tcp]),
                "RETINAD_PUBLISH__HEARTBEAT_S": "1.0",
            }
            config = cameras.configure()
            service = stack.enter_context(
                running(config, watchdog_s=WATCHDOG_S, env=environment, program=(str(_PROGRAM),))
            )
            service.notified("READY=1")
            harmed = tuple(zip(self._harmed, (tcp, ipc, tcp), strict=True))
            for listener, endpoint in harmed:
                listener.start(endpoint)
            return self._harm(service, cameras, Faults(service, cameras, harmed, fault, self._agenda.add, self._rng))

    def _harm(self, service: ServiceProcess, cameras: Cameras, blows: Faults) -> Outcome:
        for blow in blows.all:  # what happens for the first time allocates for the first time
            blow()
            self._live(service, 0.5)
        before = self._peace(service, cameras)
        began_s = time.monotonic()
        self._samples.clear()
        self._strike_until(began_s + 60 * self._minutes, service, blows)
        ended_s = time.monotonic()
        after = self._peace(service, cameras)
        blows.stop_capture()
        blows.engine_hangs()
        exit_code, exit_s = service.stop()
        self._wait_for_ends(cameras)
        self._listen()
        listeners = (self._good, *self._harmed)
        return Outcome(
            seed=self._seed,
            minutes=self._minutes,
            secret=self._secret,
            began_s=began_s,
            ended_s=ended_s,
            blows=self._blows,
            hung_at_s=blows.hung_at_s,
            samples=self._samples,
            before=before,
            after=after,
            seen=self._seen,
            survivors={listener.name for listener in listeners if listener.alive},
            listener_errors="".join(listener.errors for listener in listeners),
            fed_at_s=self._fed_at_s,
            log=[json.loads(line) for line in service.log.read_text().splitlines()],
            texts=[*self._commands, *(file.read_text() for file in self._folder.glob("*.jsonl"))],
            exit_code=exit_code,
            exit_s=exit_s,
            left_behind=processes_with(self._mark),
        )

    def _strike_until(self, end_s: float, service: ServiceProcess, blows: Faults) -> None:
        said_s = time.monotonic()
        deck: list[Callable[[], None]] = []
        while (now_s := time.monotonic()) < end_s:
            if not deck:
                deck = list(blows.all)
                self._rng.shuffle(deck)
            blow = deck.pop()
            blow()
            self._blows[blow.__name__] += 1
            self._live(service, min(self._rng.expovariate(1 / PACE_S), end_s - now_s))
            if now_s - said_s >= 60:
                said_s = now_s
                last = self._samples[-1]
                print(f"{(end_s - now_s) / 60:5.1f} min left, {self._blows.total()} blows, {last}", flush=True)

    def _live(self, service: ServiceProcess, seconds: float) -> None:
        """Let time pass, with an eye on the service."""
        end_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < end_s:
            self._agenda.do_due(now_s)
            self._look(service, now_s)
            time.sleep(max(0.0, min(0.1, end_s - time.monotonic())))

    def _look(self, service: ServiceProcess, now_s: float) -> None:
        assert service.process.poll() is None, f"it ended; its log:\n{service.log.read_text()[-4000:]}"
        self._fed_at_s += [now_s for text in service.notifications_so_far() if text == "WATCHDOG=1"]
        if not self._samples or now_s - self._samples[-1].at_s >= SAMPLE_S:
            self._samples.append(sample(service.process.pid))
            self._commands |= {" ".join(command_of(pid)) for pid in processes_with(self._mark)}
            self._listen()

    def _listen(self) -> None:
        for listener in (self._good, *self._harmed):
            if listener.file.exists():
                self._seen[listener.name] += listener.new()

    def _peace(self, service: ServiceProcess, cameras: Cameras) -> Census:
        """Mend everything, and wait until all cameras run."""
        for _, action in self._agenda.entries:
            action()
        self._agenda.entries.clear()
        cameras.heal()
        deadline_s = time.monotonic() + PATIENCE_S
        self._live(service, 6.0)  # longer than it takes to notice a frozen camera, or to drop a stopped subscriber
        while self._not_running(cameras):
            assert time.monotonic() < deadline_s, f"not running: {self._not_running(cameras)}"
            self._live(service, 0.5)
        self._live(service, 3.0)
        return Census(sample(service.process.pid), len(processes_of(service.process.pid)))

    def _not_running(self, cameras: Cameras) -> list[str]:
        self._listen()
        states = {record.camera: record.state for record in self._seen["good"] if record.kind == "status"}
        return [name for name in cameras.names if states.get(name) != "running"]

    def _wait_for_ends(self, cameras: Cameras) -> None:
        deadline_s = time.monotonic() + 5
        while time.monotonic() < deadline_s:
            self._listen()
            last = {record.camera: record.kind for record in self._seen["good"] if record.camera}
            if all(last.get(name) == "end" for name in cameras.names):
                return
            time.sleep(0.05)


_HARMED = (("first", 0.0), ("second", 0.0), ("slow", 0.4))


def _free_tcp_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"tcp://127.0.0.1:{found.getsockname()[1]}"
