"""Limits of a connection that no public call shows."""

from retinad.client import Kind
from retinad.client.connection import BURST, Connection, Subscription
from retinad.client.gaps import MAX_CAMERAS
from retinad.client.wire import StatusHeader

from .fake_service import FakeService


def test_the_newest_records_are_kept_for_a_bounded_number_of_cameras(service: FakeService) -> None:
    count = MAX_CAMERAS + 4 * BURST
    connection = Connection(Subscription(service.endpoint, kinds=(Kind.STATUS,), latest_only=True))
    try:
        service.wait_for_subscriptions(2)
        for number in range(count):
            service.say(StatusHeader(camera=f"cam{number}", state="running"))
        received, kept = 0, []
        while received < count:
            if connection.receive_nowait() is None:
                connection.socket.poll(int(1000 * connection.patience_s(10)) + 1)
            else:
                received += 1
            kept.append(len(connection._pending))
    finally:
        connection.close()
    assert max(kept) < MAX_CAMERAS + BURST
