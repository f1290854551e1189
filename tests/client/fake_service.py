"""A fake service on a bare XPUB socket, which lets tests control every byte that a subscriber receives."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
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
    """Sends the messages that a test asks for."""

    def __init__(self, socket: "zmq.Socket[bytes]", instance: str) -> None:
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.instance = instance
        self._socket = socket

    def wait_for_subscriptions(self, count: int) -> list[bytes]:
        """Wait for the next `count` subscriptions and return their topics."""
        topics: list[bytes] = []
        while len(topics) < count:
            assert self._socket.poll(5000), f"{len(topics)} of {count} subscriptions arrived"
            message = self._socket.recv()
            if message[:1] == b"\x01":
                topics.append(message[1:])
        return topics

    def send(self, *parts: bytes) -> None:
        self._socket.send_multipart(parts)

    def features(
        self,
        camera: str,
        seq: int,
        *,
        source_seq: int | None = None,
        stream_epoch: int = 0,
        layer: int = 3,
        value: float | None = None,
    ) -> None:
        """Send a record with two tensors of the same bits: `layer<N>/patch` in float16 and `file` in bfloat16."""
        data = np.full((2, 3), seq % 2048 if value is None else value, np.float16)
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
        view = memoryview(data.tobytes())
        self.send(*map(bytes, encode_features(header, [view, view])))

    def say(self, header: StatusHeader | EndHeader | HelloHeader) -> None:
        self.send(*map(bytes, encode(header)))


@contextmanager
def fake_service(endpoint: str = "tcp://127.0.0.1:0", instance: str = "a") -> Iterator[FakeService]:
    """A fake service bound to `endpoint` until the context exits."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        socket.bind(endpoint)
        yield FakeService(socket, instance)
