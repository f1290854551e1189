"""Measures throughput and latency of large records from the publisher to one subscriber. Run by `make bench`.

The subscriber runs in its own process, as in production. Sends never block, so this publisher waits for the
subscriber's reports to limit the records in flight: the path is measured, not the dropping.
"""

import multiprocessing as mp
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.connection import Connection

import numpy as np
import zmq

from retinad.client import FeaturesRecord, Subscriber
from retinad.client.wire import HelloHeader, ModelHeader
from retinad.pipeline.config import PublishConfig
from retinad.pipeline.frames import Features, FrameStamp, OutputTensor, TokenGroup, TokenOutput
from retinad.pipeline.publish.publisher import Publisher

MESSAGES = 100
ROUNDS = 3
"""The best round counts: other work on the machine can only slow it down."""
IN_FLIGHT = 4


def subscribe(endpoint: str, messages: int, pipe: Connection) -> None:
    """Receive records, and report the age of each once its first and last elements have been read."""
    with Subscriber(endpoint, timeout_s=30) as subscriber:
        for _ in range(messages):
            record = subscriber.receive()
            assert isinstance(record, FeaturesRecord)
            array = record["layer0/patch"]
            assert array.flat[0] == array.flat[-1]
            pipe.send((time.monotonic_ns() - record.capture_monotonic_ns, len(record.gaps)))


def never_read(endpoint: str, pipe: Connection) -> None:
    """Subscribe to everything, but read nothing."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 1)
        socket.subscribe(b"")
        socket.connect(endpoint)
        pipe.poll(None)


@contextmanager
def stuck_subscriber(publisher: Publisher) -> Iterator[None]:
    """Connect another subscriber, which never reads, for the duration of the block."""
    ours, theirs = mp.get_context("spawn").Pipe()
    others = publisher.statistics().subscriptions_total
    process = mp.get_context("spawn").Process(target=never_read, args=(publisher.endpoints[0], theirs))
    process.start()
    while publisher.statistics().subscriptions_total == others:
        publisher.poll()
        time.sleep(0.01)
    try:
        yield
    finally:
        ours.send(None)
        process.join()


def features(seq: int, data: np.ndarray) -> Features:
    stamp = FrameStamp("bench", 0, seq, time.time_ns(), time.monotonic_ns(), None, (640, 480))
    tensor = OutputTensor(TokenOutput.of(0, TokenGroup.PATCH, data.shape, "float16"), data)
    return Features(stamp, 0, seq, True, frozenset(), (518, 392), (28, 37), ((1, 0, 0), (0, 1, 0)), (tensor,))


def measure(
    endpoint: str, message_bytes: int, messages: int, in_flight: int, *, beside_stuck: bool = False
) -> tuple[float, list[float]]:
    """Return GB/s and each record's age in milliseconds at the subscriber, alone or beside one that never reads."""
    config = PublishConfig(endpoints=(endpoint,), buffer_mb=max(1, 2 * in_flight * message_bytes >> 20))
    ours, theirs = mp.get_context("spawn").Pipe()
    publisher = Publisher(
        config,
        model=ModelHeader(name="bench", weights="random:0"),
        largest_message_bytes=message_bytes,
        describe=HelloHeader,
    )
    with publisher, stuck_subscriber(publisher) if beside_stuck else nullcontext():
        known = publisher.statistics().subscriptions_total
        reader = mp.get_context("spawn").Process(target=subscribe, args=(publisher.endpoints[0], messages, theirs))
        reader.start()
        while publisher.statistics().subscriptions_total < known + 2:
            publisher.poll()
            time.sleep(0.01)
        payloads = [np.full(message_bytes // 2, seq, np.float16) for seq in range(in_flight + 2)]
        ages_ms: list[float] = []

        def take_report() -> None:
            assert ours.poll(30), "a record was lost: the measurement is invalid"
            age_ns, gaps = ours.recv()
            assert not gaps, "a record was lost: the measurement is invalid"
            ages_ms.append(age_ns / 1e6)

        began = time.perf_counter()
        for seq in range(messages):
            if seq >= in_flight:
                take_report()
            payload = features(seq, payloads[seq % len(payloads)])
            publisher.publish_features(
                payload, seq=seq, dropped_total=0, failed_total=0, model_done_ns=time.monotonic_ns()
            )
        while len(ages_ms) < messages:
            take_report()
        elapsed_s = time.perf_counter() - began
        reader.join()
    return messages * message_bytes / elapsed_s / 1e9, ages_ms


def main() -> int:
    """Print the figures; fail if 16 MB records over ipc are slower than 1 GB/s."""
    with tempfile.TemporaryDirectory() as folder:
        cases = [
            (f"ipc://{folder}/s", 16_000_000, MESSAGES, IN_FLIGHT),
            (f"ipc://{folder}/s", 16_000_000, MESSAGES // 4, 1),
            (f"ipc://{folder}/s", 1_000_000, 4 * MESSAGES, 1),
            ("tcp://127.0.0.1:0", 16_000_000, MESSAGES, IN_FLIGHT),
            ("tcp://127.0.0.1:0", 10_000, 10 * MESSAGES, 1),
        ]
        results = [
            (case, *max((measure(*case) for _ in range(ROUNDS)), key=lambda result: result[0])) for case in cases
        ]
        alone_ms, beside_ms = (
            min(
                float(np.percentile(measure(f"ipc://{folder}/s", 1_000_000, 1000, 1, beside_stuck=stuck)[1], 99))
                for _ in range(ROUNDS)
            )
            for stuck in (False, True)
        )
    for (endpoint, message_bytes, _, in_flight), rate, ages_ms in results:
        p50, p99 = np.percentile(ages_ms, (50, 99))
        print(
            f"publish {endpoint[:3]} {message_bytes / 1e6:6.2f} MB, {in_flight} in flight: {rate:5.2f} GB/s, "
            f"{len(ages_ms)} records, publish to numpy p50 {p50:.2f} ms, p99 {p99:.2f} ms"
        )
    print(
        f"publish ipc   1.00 MB, 1 in flight, beside a subscriber that never reads: p99 {beside_ms:.2f} ms, "
        f"without it {alone_ms:.2f} ms"
    )
    return 0 if results[0][1] >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
