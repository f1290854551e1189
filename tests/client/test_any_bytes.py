"""Arbitrary input on the socket: a subscriber raises its own errors and continues, without a crash or a leak."""

import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retinad.client import AsyncSubscriber, Kind, StatusRecord, Subscriber, WireError, connection
from retinad.client.record import Record
from retinad.client.wire import StatusHeader, encode

from .fake_service import fake_service
from .messages import edited
from .zmtp import COMMAND, GREETING, LONG, MORE, READY, frame, message, peer

each_connects = settings(deadline=None, max_examples=200)  # 5 ms an example
a_dozen = settings(deadline=None, max_examples=12)  # a refused connection is retried after a second

LAST = StatusHeader(camera="last", state="running")
HEADER = edited()
BOMBS = (
    b"\x82\xa6schema\x01\xa1x" + b"\x91" * 100_000,  # nested
    b"\x82\xa6schema\x01\xa1x\xdd\xff\xff\xff\xff",  # four billion elements
    b"\x82\xa6schema\x01\xa1x\xdb\xff\xff\xff\xff",  # a string of four gigabytes
    b"\x82\xa6schema\x01\xa1x\xc9\xff\xff\xff\xff\x01",  # an extension of the same size
    b"\xdf\xff\xff\xff\xff",  # four billion keys
)

topics = st.builds(
    bytes.__add__, st.sampled_from([b"features/", b"features/cam1/", b"status/", b"end/", b"hello/"]), st.binary()
)
damaged = st.builds(
    lambda at, patch, cut: HEADER[:at] + patch + HEADER[at + cut :],
    st.integers(0, len(HEADER)),
    st.binary(max_size=3),
    st.integers(0, 60),
)
headers = st.binary() | damaged | st.sampled_from((*BOMBS, HEADER, *map(bytes, encode(LAST)[1:])))
messages = st.lists(
    st.builds(
        lambda first, rest: [first, *rest],
        topics,
        st.lists(headers, max_size=1).flatmap(lambda header: st.lists(st.binary(), max_size=3).map(header.__add__)),
    ),
    max_size=20,
)


@each_connects
@given(messages, st.booleans())
def test_every_message_is_a_record_or_a_wire_error(sent: list[list[bytes]], latest_only: bool) -> None:
    with (
        fake_service() as service,
        Subscriber(service.endpoint, kinds=tuple(Kind), timeout_s=10, latest_only=latest_only) as subscriber,
    ):
        service.wait_for_subscriptions(4)
        for parts in sent:
            service.send(*parts)
        service.say(LAST)
        taken = 0
        while not is_last(record_or_error(subscriber)):
            taken += 1
    assert taken == len(sent) or (latest_only and taken < len(sent))


@pytest.mark.anyio
@each_connects
@given(messages)
async def test_every_message_is_a_record_or_a_wire_error_for_asyncio_too(sent: list[list[bytes]]) -> None:
    with fake_service() as service:
        async with AsyncSubscriber(service.endpoint, kinds=tuple(Kind), timeout_s=10) as subscriber:
            service.wait_for_subscriptions(4)
            for parts in [*sent, list(map(bytes, encode(LAST)))]:
                service.send(*parts)
            taken = 0
            while True:
                try:
                    if is_last(await subscriber.receive()):
                        break
                except WireError:
                    pass
                taken += 1
    assert taken == len(sent)


frames = st.builds(
    frame,
    st.binary(),
    st.integers(0, 255).map(lambda flags: flags & ~COMMAND) | st.sampled_from([0, MORE, LONG]),
    st.none() | st.sampled_from([0, 1, 255, 256, 1 << 20, 1 << 30, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1]),
)
"""Commands are left out: see `docs/reliability.md`."""

after_a_handshake = st.tuples(st.lists(frames).map(b"".join), st.just(True))
instead_of_one = st.tuples(st.binary() | st.integers(0, 63).map(lambda length: GREETING[:length]), st.just(False))


@a_dozen
@given(after_a_handshake | instead_of_one)
@example((frame(b"hello/", 0, 1 << 30), True))
@example((frame(b"hello/", 0, (1 << 64) - 1), True))
@example((GREETING + READY[:-3], False))
def test_a_peer_that_breaks_zmtp_or_lies_about_sizes_is_dropped_and_the_next_one_is_heard(
    start: tuple[bytes, bool],
) -> None:
    """The peer's connection is closed or ends midway; no memory is allocated for sizes that the peer only claims."""
    (first, greets), resident_mb = start, resident()
    good = message(list(map(bytes, encode(LAST))))
    with pytest.MonkeyPatch.context() as patch, peer(first, good, greets=greets) as endpoint:
        # libzmq never retries a peer that breaks the protocol: the subscriber itself reconnects.
        patch.setattr(connection, "SILENCE_S", 1.0)
        with Subscriber(endpoint, kinds=tuple(Kind), timeout_s=10) as subscriber:
            while not is_last(record_or_error(subscriber)):
                pass
    assert resident() - resident_mb < 64


def test_bad_messages_leak_no_memory() -> None:
    with fake_service() as service, Subscriber(service.endpoint, kinds=tuple(Kind), timeout_s=10) as subscriber:
        service.wait_for_subscriptions(4)
        resident_mb = 0.0
        for turn in range(40):
            for bomb in BOMBS:
                service.send(b"features/cam1/", bomb, bytes(1 << 20))
                assert record_or_error(subscriber) is None
            if turn == 10:
                resident_mb = resident()
    assert resident() - resident_mb < 16  # 150 MB were sent since


def record_or_error(subscriber: Subscriber) -> Record | None:
    try:
        return subscriber.receive()
    except WireError:
        return None


def is_last(record: Record | None) -> bool:
    return isinstance(record, StatusRecord) and record.camera == LAST.camera


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
