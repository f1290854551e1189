"""The service with failing cameras, as a process: they must not disturb it, and it must not leak secrets."""

import base64
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from retinad.client import FeaturesRecord, Kind, StatusRecord

from ...deadlines import scaled
from ..records import features_of, record_of
from ..service_rig import camera, processes_of, receive_until, running, subscriber, write_config

NOISE = bytes(range(256)) * 8
GOOD = camera("good", "synthetic:?fps=30&width=160&height=120")


@contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """A port that answers each connection and closes it; with None, it accepts and never answers."""
    peers: list[socket.socket] = []

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                peers.append(listener.accept()[0])
                if answer is not None:
                    peers[-1].recv(65536)
                    peers[-1].sendall(answer)
                    peers[-1].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for peer in peers:
                peer.close()


def test_dead_cameras_hold_up_no_other_no_reload_and_no_stop(tmp_path: Path) -> None:
    """They accept and never answer, while reloads add and remove them at any moment."""
    chance = random.Random(5)
    with server(None) as port:
        dead = [camera(f"dead{n}", f"rtsp://127.0.0.1:{port}/{n}", connect_timeout_s=30) for n in range(3)]
        config = write_config(tmp_path, "".join(dead) + GOOD)
        with subscriber(tmp_path, Kind.FEATURES) as records_in, running(config) as service:
            service.notified("READY=1")
            began = time.monotonic()
            records = features_of(receive_until(records_in, record_of("good")))
            assert time.monotonic() - began < scaled(2)
            for number in range(5):
                write_config(tmp_path, GOOD + "".join(dead[: (number + 1) % 4]))
                service.process.send_signal(signal.SIGHUP)
                service.notified("READY=1")
                time.sleep(chance.uniform(0, 0.15))
            children = processes_of(service.process.pid)
            assert len(children) == 2, "the good camera's, and one for the only dead one of the last config"
            more = receive_until(records_in, record_of("good", at_least=records[-1].seq + 31))
            records += features_of(more)
            code, took_s = service.stop()
    assert (code, took_s < scaled(3)) == (0, True)
    assert not [child for child in children if Path(f"/proc/{child}").exists()]
    assert {record.stream_epoch for record in records} == {0}
    assert [record.seq for record in records] == list(range(records[0].seq, records[-1].seq + 1))


JUMPING = """
import time
real, real_ns = time.time, time.time_ns
def jump_s(): return 3600 * (-1) ** int(time.monotonic() * 5)
time.time = lambda: real() + jump_s()
time.time_ns = lambda: real_ns() + int(jump_s() * 1e9)
"""


def test_a_wall_clock_that_jumps_disturbs_nothing(tmp_path: Path) -> None:
    """It jumps by an hour, five times a second, in the service and its capture processes."""
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(JUMPING)
    paths = os.pathsep.join([str(tmp_path / "clock"), *filter(None, [os.environ.get("PYTHONPATH")])])
    source = "synthetic:?fps=30&width=160&height=120"
    config = write_config(tmp_path, camera("a", source, stall_timeout_s=1, connect_timeout_s=3))
    with subscriber(tmp_path) as records_in, running(config, watchdog_s=2.0, env={"PYTHONPATH": paths}) as service:
        records = receive_until(records_in, lambda record: isinstance(record, FeaturesRecord) and record.seq >= 45)
        service.notified("WATCHDOG=1")
        assert service.stop()[0] == 0
    frames = [record for record in records if isinstance(record, FeaturesRecord)]
    unix_ns = [record.capture_unix_ns for record in frames]
    assert max(unix_ns) - min(unix_ns) > 3600e9, "the clock did not jump"
    assert {record.stream_epoch for record in frames} == {0}
    states = {record.state for record in records if isinstance(record, StatusRecord)}
    assert states <= {"connecting", "running"}


def test_no_output_names_a_secret_whatever_fails(tmp_path: Path) -> None:
    """Base64 included, as HTTP and RTSP send credentials."""
    login, secrets = "admin:s3cret%40x", ("s3cret", base64.b64encode(b"admin:s3cret@x").decode()[:18])
    failures = {
        "rtsp": (None, b"RTSP/1.0 401 Unauthorized\r\nCSeq: 1\r\nWWW-Authenticate: Basic realm=x\r\n\r\n", NOISE),
        "http": (
            None,
            b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n\r\n",
            f"HTTP/1.1 302 Found\r\nLocation: http://{login}@127.0.0.1:9/?token=s3cret1\r\n\r\n".encode(),
            b"HTTP/1.1 200 OK\r\nContent-Type: video/mp2t\r\n\r\n" + NOISE,
        ),
        "https": (NOISE,),
    }
    shown: list[str] = []
    with ExitStack() as servers:
        cameras = [
            camera(
                f"{scheme}{number}",
                f"{scheme}://{login}@127.0.0.1:{servers.enter_context(server(answer))}/x?password=s3cret2&api_key=s3cret3",
                connect_timeout_s=0.5,
                stall_timeout_s=0.5,
                retry=False,
            )
            for scheme, answers in failures.items()
            for number, answer in enumerate(answers)
        ]
        config = write_config(tmp_path, "".join(cameras), service='exit_when_done = true\nlog_level = "debug"')
        with subscriber(tmp_path) as records_in, running(config) as service:
            while sum("EndRecord" in text for text in shown) < len(cameras):
                shown.append(repr(records_in.receive()))
                shown += process_texts(service.process.pid, *processes_of(service.process.pid))
            assert service.wait() == 66
        shown.append(service.log.read_text())
    assert any("auth: " in text for text in shown)
    assert not [secret for text in shown for secret in secrets if secret in text]


def process_texts(*pids: int) -> list[str]:
    """Arguments, environments and names of processes, as `ps` shows them; those that have ended are skipped."""
    texts = []
    for pid in pids:
        with suppress(OSError):
            texts += [
                Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
                for name in ("cmdline", "environ", "comm")
            ]
    return texts
