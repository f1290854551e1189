"""A publisher, raw subscribers and key files for the tests of this folder."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import zmq
import zmq.auth

from retinad.client import CurveKeys, FeaturesRecord, Subscriber
from retinad.client.wire import HelloHeader, ModelHeader
from retinad.pipeline.config import CurveConfig, PublishConfig
from retinad.pipeline.frames import DType, Features, Flag, FrameStamp, Numbers, OutputTensor, TokenGroup, TokenOutput
from retinad.pipeline.publish.publisher import Publisher

from ...deadlines import scaled

TCP = "tcp://127.0.0.1:0"
DTYPES: dict[str, DType] = {"f2": "float16", "f4": "float32", "u2": "bfloat16"}


def resident_bytes() -> int:
    found = re.search(r"VmRSS:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def make_features(camera: str, seq: int, data: Numbers | None = None) -> Features:
    stamp = FrameStamp(camera, 0, seq, time.time_ns(), time.monotonic_ns(), None, (640, 480))
    patch = np.full((2, 3, 4), seq, np.float16) if data is None else data
    output = TokenOutput.of(3, TokenGroup.PATCH, patch.shape, DTYPES[patch.dtype.str[1:]])
    return Features(
        stamp=stamp,
        epoch=0,
        epoch_frame=seq,
        keyframe=True,
        flags=frozenset({Flag.WARMUP, Flag.RESET}),
        model_size=(518, 392),
        grid=(2, 3),
        to_source=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)),
        tensors=(OutputTensor(output, patch),),
        latency_us={"queue": 10, "preprocess": 20, "model": 30},
    )


def make_publisher(
    *endpoints: str,
    largest_message_bytes: int = 1000,
    burst_messages: int = 1,
    buffer_mb: int = 64,
    heartbeat_s: float = 5.0,
    curve: CurveConfig | None = None,
    allow_plaintext: bool = False,
) -> Publisher:
    return Publisher(
        PublishConfig(endpoints or (TCP,), buffer_mb, heartbeat_s, curve, allow_plaintext),
        model=ModelHeader(name="tiny", weights="random:0"),
        largest_message_bytes=largest_message_bytes,
        burst_messages=burst_messages,
        describe=lambda: HelloHeader(version="1.2.3"),
    )


def publish(publisher: Publisher, camera: str, seq: int, data: Numbers | None = None) -> None:
    publisher.publish_features(
        make_features(camera, seq, data), seq=seq, dropped_total=1, failed_total=2, model_done_ns=time.monotonic_ns()
    )


def receive_features(subscriber: Subscriber) -> FeaturesRecord:
    record = subscriber.receive(scaled(5))
    assert isinstance(record, FeaturesRecord)
    return record


def poll_until(publisher: Publisher, name: str, value: int, timeout_s: float = 5.0) -> None:
    """Poll as the service does until a counter reaches a value."""
    until = time.monotonic() + scaled(timeout_s)
    while getattr(publisher.statistics(), name) < value:
        assert time.monotonic() < until, f"{name} stays below {value}: {publisher.statistics()}"
        publisher.poll()
        time.sleep(0.01)


@contextmanager
def raw_subscriber(endpoint: str, *topics: bytes, hwm: int = 1000) -> Iterator["zmq.Socket[bytes]"]:
    with zmq.Context() as context, context.socket(zmq.SUB) as opened:
        opened.setsockopt(zmq.LINGER, 0)
        opened.setsockopt(zmq.RCVHWM, hwm)
        for topic in topics:
            opened.setsockopt(zmq.SUBSCRIBE, topic)
        opened.connect(endpoint)
        yield opened


class Keys:
    """Key files of a service and its clients."""

    def __init__(self, folder: Path) -> None:
        self.authorized = folder / "authorized"
        self.authorized.mkdir()
        self._folder = folder
        self.server_public, self.server_secret = self.make("server")

    def make(self, name: str, *, authorized: bool = False) -> tuple[Path, Path]:
        public, secret = map(Path, zmq.auth.create_certificates(self._folder, name))
        if authorized:
            (self.authorized / public.name).write_bytes(public.read_bytes())
        return public, secret

    def client(self, name: str, *, authorized: bool) -> CurveKeys:
        return CurveKeys(self.make(name, authorized=authorized)[1], self.server_public)

    def config(self) -> CurveConfig:
        return CurveConfig(self.server_secret, self.authorized)


@contextmanager
def polled_elsewhere(publisher: Publisher) -> Iterator[None]:
    """Open a publisher on a thread that polls it and publishes, as a service would."""
    stop, ready = threading.Event(), threading.Event()

    def serve() -> None:
        with publisher:
            ready.set()
            seq = 0
            while not stop.wait(0.01):
                publisher.poll()
                publish(publisher, "cam1", seq)
                seq += 1

    thread = threading.Thread(target=serve)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()
