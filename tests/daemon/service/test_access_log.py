"""Refused subscribers are logged at once, and a stranger who tries without end does not flood the log."""

import pytest
from structlog.testing import capture_logs

from retinad.daemon.service.access_log import AccessLog
from retinad.pipeline.publish.refusals import Refusal

ROBOT = Refusal("10.0.0.7", "its key is not among the authorized keys", "Yne@$w-v")


def test_a_refusal_names_address_key_and_reason_and_is_repeated_rarely() -> None:
    log = AccessLog()
    with capture_logs() as lines:
        for _ in range(100):
            log.refused(ROBOT, 3)
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("subscriber refused", "warning")
    assert (line["address"], line["key"], line["reason"]) == (ROBOT.address, ROBOT.key, ROBOT.reason)
    assert line["similar_not_logged"] == 2


@pytest.mark.parametrize("key", [None, "Yne@$w-v"])
def test_many_addresses_do_not_flood_the_log(key: str | None) -> None:
    log = AccessLog()
    with capture_logs() as lines:
        for number in range(1000):
            log.refused(Refusal(f"10.0.{number // 256}.{number % 256}", "reason", key), 1)
    assert len(lines) == 10


def test_unreadable_keys_are_named_once_and_when_it_is_over() -> None:
    log = AccessLog()
    with capture_logs() as lines:
        log.keys(None)
        for _ in range(10):
            log.keys("cannot read the CURVE key in broken.key")
        log.keys(None)
        log.keys("cannot read the CURVE key in broken.key")
    assert [line["event"] for line in lines] == [
        "authorized keys not readable",
        "authorized keys readable again",
        "authorized keys not readable",
    ]
    assert "broken.key" in lines[0]["problem"]
