"""The running service answers where a picture was taken, and its cameras do not notice. Random weights."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import cv2
import numpy as np
import pytest

from retinad.client import FeaturesRecord, Kind, Locator, QueryError
from retinad.client.query import encode_query
from retinad.client.wire import Buffer
from retinad.daemon.cli.app import run_command
from retinad.daemon.exit_codes import ExitCode
from retinad.daemon.service import queries
from retinad.daemon.service.queries import QueryServer
from retinad.pipeline.errors import QueryError as EngineQueryError
from retinad.pipeline.publish.query_socket import Request
from retinad.pipeline.worker import Worker

from ...deadlines import scaled
from ..service_rig import camera, running, subscriber, write_config, write_frames

HEADS = 'outputs = ["features", "pose", "depth"]\nlayers = [1, 3]\n'


def config_in(folder: Path, source: object, **keys: object) -> Path:
    path = write_config(
        folder, camera("a", source, **keys), publish=f'locate_endpoint = "ipc://{folder}/locate.sock"', model=HEADS
    )
    path.write_text(path.read_text().replace("depth = 2\nlayers = [1]\n", "depth = 4\n"))
    return path


def test_a_service_locates_pictures_beside_its_cameras(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are bit for bit those of a service that nobody asks: they are compared by `test_query`'s engine; here
    the sequence must have no gap, and the answers come in the frame of reference of the records."""
    picture = write_frames(tmp_path / "pictures", 1)[0]
    config = config_in(tmp_path, "synthetic:?fps=4&width=160&height=120")
    asking = [str(picture), "--endpoint", f"ipc://{tmp_path}/locate.sock", "--timeout", str(scaled(20))]
    with running(config) as service, subscriber(tmp_path, Kind.FEATURES) as source:
        service.notified("READY=1")
        first = source.receive()
        with Locator(f"ipc://{tmp_path}/locate.sock") as locator:
            with pytest.raises(QueryError, match="no camera with a stream is named 'b'; there are a"):
                locator.locate("b", picture.read_bytes(), timeout_s=scaled(20))
            with pytest.raises(QueryError, match="the picture cannot be decoded"):
                locator.locate("a", b"no picture", timeout_s=scaled(20))
            answers = [locator.locate("a", picture.read_bytes(), timeout_s=scaled(20)) for _ in range(3)]
        assert run_command(["locate", "a", *asking]) == ExitCode.OK
        assert run_command(["locate", "a", *asking, "--json"]) == ExitCode.OK
        assert run_command(["locate", "b", *asking]) == ExitCode.UNAVAILABLE
        records = [source.receive() for _ in range(5)]
        assert service.stop()[0] == 0
    assert isinstance(first, FeaturesRecord)
    for answer in answers:
        assert (answer.camera, answer.keyframe, answer.instance) == ("a", False, first.instance)
        assert answer.world_from_camera.shape == (3, 4)
        assert answer.depth.shape == (answer.model_size[1], answer.model_size[0])
        assert not any(name.startswith("layer") for name in answer.tensors)
        assert answer.source_size == (160, 120)
    assert all(not record.gaps for record in records)
    said, wrong = capsys.readouterr()
    text, found = said[: said.index("{")], json.loads(said[said.index("{") :])
    assert "position" in text
    assert "random: these numbers mean nothing" in text
    assert np.shape(found["world_from_camera"]) == (3, 4)
    assert "no camera with a stream is named 'b'" in wrong


def test_locate_finds_the_endpoint_in_the_running_services_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "run"))
    (tmp_path / "run").mkdir(mode=0o700)
    picture = write_frames(tmp_path / "pictures", 1)[0]
    config = config_in(tmp_path, "synthetic:?fps=20&width=160&height=120")
    with running(config) as service, subscriber(tmp_path, Kind.FEATURES) as source:
        service.notified("READY=1")
        source.receive()
        options = ["--config", str(config), "--timeout", str(scaled(20))]
        assert run_command(["locate", "a", str(picture), *options]) == ExitCode.OK, capsys.readouterr().err
        assert run_command(["locate", "a", str(tmp_path / "none.jpg"), *options]) == ExitCode.NO_INPUT


class FakeSocket:
    """Takes requests from a list, and keeps the answers."""

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.answers: list[tuple[Request, bytes]] = []
        self._news = anyio.Event()

    def fileno(self) -> int:
        return 0

    def take(self) -> list[Request]:
        taken, self.requests = self.requests, []
        return taken

    def answer(self, request: Request, parts: list[Buffer]) -> None:
        self.answers.append((request, bytes(parts[-1])))
        self._news.set()

    async def answered(self, enough: Callable[["FakeSocket"], bool]) -> None:
        while not enough(self):
            self._news = anyio.Event()
            await self._news.wait()


class SlowEngine:
    """Takes a while for each picture, and locates none."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.running = 0
        self.most = 0

    def __enter__(self) -> "SlowEngine":
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def locate(self, camera: str, pixels: Any) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        time.sleep(self.delay_s)
        self.running -= 1
        raise EngineQueryError(f"asked about {camera}")


def served(requests: list[Request], engine: SlowEngine, enough: Callable[[FakeSocket], bool]) -> FakeSocket:
    async def idle(_: object) -> None:
        await anyio.sleep(0.01)

    async def run() -> FakeSocket:
        fake = FakeSocket(requests)
        async with Worker(lambda: engine) as worker:
            server = QueryServer(fake, None, worker)  # type: ignore[arg-type]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve)
                with anyio.fail_after(scaled(30)):
                    await fake.answered(enough)
                tasks.cancel_scope.cancel()
        return fake

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anyio, "wait_readable", idle)
        return anyio.run(run)


def picture_bytes() -> bytes:
    _, data = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))
    return bytes(data)


def request(number: int, timeout_s: float = 60.0, picture: bytes | None = None) -> Request:
    parts = encode_query(f"cam{number}", picture or picture_bytes(), timeout_s)
    return Request((b"peer",), tuple(bytes(part) for part in parts))


def test_a_full_queue_refuses_at_once_and_pictures_run_one_at_a_time() -> None:
    engine = SlowEngine(0.02)
    fake = served([request(number) for number in range(12)], engine, lambda fake: len(fake.answers) == 12)
    reasons = [reason for _, reason in fake.answers]
    assert sum(b"the service is busy: 8 pictures wait" in reason for reason in reasons) == 12 - queries.MOST_WAITING
    assert sum(b"asked about cam" in reason for reason in reasons) == queries.MOST_WAITING
    assert engine.most == 1


def test_a_picture_that_waited_longer_than_its_client_is_not_run() -> None:
    engine = SlowEngine(0.3)
    requests = [request(0), request(1, timeout_s=0.1), request(2)]
    fake = served(requests, engine, lambda fake: len(fake.answers) == 3)
    assert [b"waited longer than 0.1 s" in reason for _, reason in fake.answers] == [False, True, False]


def test_malformed_requests_are_answered_and_the_next_one_runs() -> None:
    requests = [Request((b"peer",), ()), Request((b"peer",), (b"\xc1", b"x")), request(1)]
    fake = served(requests, SlowEngine(0.0), lambda fake: len(fake.answers) == 3)
    assert [b"asked about" in reason for _, reason in fake.answers] == [False, False, True]
