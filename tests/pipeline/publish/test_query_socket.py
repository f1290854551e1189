"""Queries reach the service under the publisher's own rules: authorised peers only, and nobody sends without end."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retinad.client import CurveKeys, Locator, QueryError
from retinad.client.query import MAX_PICTURE_BYTES, decode_query, encode_answer, encode_refusal
from retinad.pipeline.config import CurveConfig, PublishConfig
from retinad.pipeline.errors import PublishError
from retinad.pipeline.publish.endpoints import check_endpoints
from retinad.pipeline.publish.publisher import Publisher
from retinad.pipeline.publish.query_socket import Request

from ...client.zmtp import GREETING, MORE, frame, ready
from ...deadlines import scaled
from .rig import TCP, Keys, make_features, make_publisher, resident_bytes


def with_queries(endpoint: str, curve: CurveConfig | None = None) -> Publisher:
    publisher = make_publisher(TCP, curve=curve)
    publisher._config = replace(publisher._config, locate_endpoint=endpoint)
    return publisher


@contextmanager
def answering(publisher: Publisher) -> Iterator[str]:
    """Answer queries on another thread: about camera `cam1` only, with the length of the picture as sequence number."""
    stop, opened, endpoint = threading.Event(), threading.Event(), [""]

    def serve() -> None:
        with publisher:
            assert publisher.queries is not None
            endpoint[0] = publisher.queries.endpoint
            opened.set()
            while not stop.wait(0.005):
                publisher.poll()
                for request in publisher.queries.take():
                    query = decode_query(request.parts)
                    if query.header.camera != "cam1":
                        publisher.queries.answer(request, encode_refusal(f"no camera {query.header.camera}"))
                        continue
                    features = make_features("cam1", len(query.picture), np.zeros((2, 3, 4), np.float16))
                    publisher.queries.answer(request, encode_answer(publisher.encoded(features)))

    thread = threading.Thread(target=serve)
    thread.start()
    assert opened.wait(scaled(10))
    try:
        yield endpoint[0]
    finally:
        stop.set()
        thread.join(scaled(10))


def test_a_picture_goes_in_and_a_record_comes_back(tmp_path: Path) -> None:
    for endpoint in (TCP, f"ipc://{tmp_path}/locate.sock"):
        with answering(with_queries(endpoint)) as bound, Locator(bound) as locator:
            for size in (1, 1000, MAX_PICTURE_BYTES):
                record = locator.locate("cam1", bytes(size), timeout_s=scaled(10))
                assert record.source_seq == size
            with pytest.raises(QueryError, match="no camera cam2"):
                locator.locate("cam2", b"x", timeout_s=scaled(10))
            assert locator.locate("cam1", b"x", timeout_s=scaled(10)).source_seq == 1


def test_many_clients_get_each_their_own_answer(tmp_path: Path) -> None:
    found: dict[int, int] = {}
    with answering(with_queries(f"ipc://{tmp_path}/locate.sock")) as endpoint:

        def ask(size: int) -> None:
            with Locator(endpoint) as locator:
                for _ in range(5):
                    found[size] = locator.locate("cam1", bytes(size), timeout_s=scaled(20)).source_seq

        threads = [threading.Thread(target=ask, args=(size,)) for size in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(scaled(30))
    assert found == {size: size for size in range(1, 9)}


def test_only_authorised_clients_are_answered(keys: Keys) -> None:
    publisher = with_queries(TCP, keys.config())
    welcome, stranger = keys.client("welcome", authorized=True), keys.client("stranger", authorized=False)
    with answering(publisher) as endpoint:
        with Locator(endpoint, curve=welcome) as locator:
            assert locator.locate("cam1", b"x", timeout_s=scaled(10)).camera == "cam1"
        curves: tuple[CurveKeys | None, ...] = (stranger, None)
        for curve in curves:
            with Locator(endpoint, curve=curve) as locator, pytest.raises(TimeoutError, match="CURVE keys"):
                locator.locate("cam1", b"x", timeout_s=0.5)


def test_an_endpoint_beyond_this_machine_needs_keys(keys: Keys) -> None:
    open_to_all = PublishConfig((TCP,), locate_endpoint="tcp://0.0.0.0:5556")
    with pytest.raises(PublishError, match=r"tcp://0\.0\.0\.0:5556 is reachable from other machines"):
        check_endpoints(open_to_all)
    check_endpoints(replace(open_to_all, curve=keys.config()))


def test_any_number_of_complete_requests_is_taken() -> None:
    with answering(with_queries(TCP)) as endpoint, Locator(endpoint) as locator:
        for _ in range(6):
            assert locator.locate("cam1", bytes(MAX_PICTURE_BYTES), timeout_s=scaled(10)).camera == "cam1"


def next_request(publisher: Publisher) -> Request:
    assert publisher.queries is not None
    until = time.monotonic() + scaled(10)
    while not (requests := publisher.queries.take()):
        assert time.monotonic() < until
        time.sleep(0.005)
    return requests[0]


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    endpoint, numbers = f"ipc://{tmp_path}/locate.sock", list[int]()

    def ask_twice() -> None:
        with Locator(endpoint) as locator:
            with pytest.raises(TimeoutError, match="no answer"):
                locator.locate("cam1", b"first", timeout_s=0.2)
            numbers.append(locator.locate("cam1", b"second", timeout_s=scaled(10)).source_seq)

    with with_queries(endpoint) as publisher:
        assert publisher.queries is not None
        asking = threading.Thread(target=ask_twice)
        asking.start()
        late, now = next_request(publisher), next_request(publisher)
        publisher.queries.answer(late, encode_answer(publisher.encoded(make_features("cam1", 1))))
        publisher.queries.answer(now, encode_answer(publisher.encoded(make_features("cam1", 2))))
        asking.join(scaled(20))
    assert (late.parts[1], now.parts[1], numbers) == (b"first", b"second", [2])


@pytest.mark.parametrize(("size", "pause_s"), [(1, 0.0), (100_000, 0.0), (100_000, 0.02)])
def test_a_request_that_never_ends_is_cut_before_it_fills_the_memory(size: int, pause_s: float) -> None:
    with answering(with_queries(TCP)) as endpoint:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        before, over = resident_bytes(), threading.Event()

        def flood() -> None:
            with socket.create_connection((host, int(port))) as peer, suppress(OSError):
                peer.settimeout(scaled(10))
                peer.sendall(GREETING)
                peer.recv(4096)
                peer.sendall(ready(b"REQ"))
                part = frame(b"x" * size, flags=MORE) * max(1, 60_000 // size)
                while not over.is_set():
                    peer.sendall(part)
                    time.sleep(pause_s)
            over.set()

        thread = threading.Thread(target=flood)
        thread.start()
        assert over.wait(scaled(20)), "the peer was not cut"
        thread.join(scaled(10))
        assert resident_bytes() - before < 1.5e9
        with Locator(endpoint) as locator:
            assert locator.locate("cam1", b"x", timeout_s=scaled(10)).camera == "cam1"
