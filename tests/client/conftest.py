"""A service played by a bare XPUB socket, so that tests decide every byte that a subscriber gets."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import zmq

from retinad.client.wire import (
    EndHeader,
    FeaturesHeader,
    HelloHeader,
    ModelHeader,
    StatusHeader,
    TensorHeader,
    encode,
    encode_features,
)


class FakeService:
    """Sends what it is told to, once somebody has subscribed."""

    def __init__(self, socket: "zmq.Socket[bytes]", instance: str) -> None:
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.instance = instance
        self._socket = socket

    def wait_for_subscriptions(self, count: int) -> list[bytes]:
        """The next `count` subscriptions."""
        topics: list[bytes] = []
        while len(topics) < count:
            assert self._socket.poll(5000), f"{len(topics)} of {count} subscriptions came"
            message = self._socket.recv()
            if message[:1] == b"\x01":
                topics.append(message[1:])
        return topics

    def send(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)

    def features(
        self, camera: str, seq: int, *, source_seq: int | None = None, stream_epoch: int = 0, layer: int = 3
    ) -> None:
        data = np.full((2, 3), seq % 2048, np.float16)
        header = FeaturesHeader(
            camera=camera,
            instance=self.instance,
            stream_epoch=stream_epoch,
            seq=seq,
            source_seq=seq if source_seq is None else source_seq,
            capture_unix_ns=time.time_ns(),
            capture_monotonic_ns=time.monotonic_ns(),
            publish_unix_ns=time.time_ns(),
            epoch=0,
            epoch_frame=seq,
            keyframe=True,
            source_size=(640, 480),
            model_size=(518, 392),
            grid=(28, 37),
            to_source=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)),
            model=ModelHeader(name="tiny", weights="random:0"),
            tensors=(
                TensorHeader(
                    name=f"layer{layer}/patch", dtype="<f2", shape=(2, 3), nbytes=12, layer=layer, group="patch"
                ),
                TensorHeader(name="file", dtype="bf16", shape=(6,), nbytes=12, layer=3, group="camera"),
            ),
        )
        view = memoryview(data.view(np.uint8))
        self.send(*map(bytes, encode_features(header, [view, view])))

    def say(self, header: StatusHeader | EndHeader | HelloHeader) -> None:
        self.send(*map(bytes, encode(header)))


@contextmanager
def fake_service(endpoint: str = "tcp://127.0.0.1:0", instance: str = "a") -> Iterator[FakeService]:
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        socket.bind(endpoint)
        yield FakeService(socket, instance)


@pytest.fixture
def service() -> Iterator[FakeService]:
    with fake_service() as opened:
        yield opened


@pytest.fixture
def open_service() -> object:
    """Opens a service at an endpoint of the test's choice."""
    return fake_service
