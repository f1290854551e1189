"""Gap detection from header counters: exact, reported once, and silent for late joiners."""

import msgspec
import pytest

from retinad.client.gaps import MAX_CAMERAS, Gap, GapKind, GapTracker, merge
from retinad.client.wire import EndHeader, ModelHeader, RecordFields


def record(seq: int, source_seq: int, stream_epoch: int = 0, instance: str = "a", camera: str = "cam") -> RecordFields:
    return RecordFields(
        camera=camera,
        instance=instance,
        stream_epoch=stream_epoch,
        seq=seq,
        source_seq=source_seq,
        capture_unix_ns=0,
        capture_monotonic_ns=0,
        publish_unix_ns=0,
        epoch=0,
        epoch_frame=0,
        keyframe=True,
        source_size=(1, 1),
        model_size=(1, 1),
        grid=(1, 1),
        to_source=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)),
        model=ModelHeader(name="m", weights="random:0"),
    )


def gaps(*records: RecordFields) -> dict[str, int]:
    """The gaps before the last of the records."""
    tracker = GapTracker()
    found: tuple[Gap, ...] = ()
    for each in records:
        found = tracker.before_record(each)
    return {gap.kind.value: gap.count for gap in found}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([record(41, 99)], {}),
        ([record(0, 0), record(1, 1)], {}),
        ([record(0, 0), record(1, 4)], {"source_drop": 3}),
        ([record(0, 0), record(4, 4)], {"wire_loss": 3}),
        ([record(0, 0), record(3, 10)], {"source_drop": 7, "wire_loss": 2}),
        ([record(5, 5), record(0, 0, stream_epoch=1)], {"reconnect": 1}),
        ([record(5, 5), record(2, 6, stream_epoch=3)], {"reconnect": 3, "source_drop": 4, "wire_loss": 2}),
        ([record(5, 5, stream_epoch=7), record(0, 0, instance="b")], {"restart": 1}),
        ([record(5, 5), record(1, 2, stream_epoch=2, instance="b")], {"restart": 1, "source_drop": 1, "wire_loss": 1}),
        ([record(5, 5), record(5, 5)], {}),
        ([record(5, 5), record(3, 3)], {}),
        ([record(5, 5, stream_epoch=1), record(9, 9), record(6, 6, stream_epoch=1)], {}),
        ([record(0, 0), record(7, 7, camera="other")], {}),
    ],
)
def test_each_jump_of_the_counters_is_classified(records: list[RecordFields], expected: dict[str, int]) -> None:
    assert gaps(*records) == expected


@pytest.mark.parametrize(
    ("end", "lost"),
    [
        ({"next_seq": 6}, 0),
        ({"next_seq": 9}, 3),
        ({"next_seq": 9, "instance": "b"}, 0),
        ({"next_seq": None}, 0),
        ({"next_seq": 2}, 0),
        ({"next_seq": 4, "stream_epoch": 1}, 4),
    ],
)
def test_an_end_shows_whether_the_last_records_arrived(end: dict[str, object], lost: int) -> None:
    tracker = GapTracker()
    tracker.before_record(record(5, 5))
    header = msgspec.convert(
        {"camera": "cam", "reason": "finished", "instance": "a", "stream_epoch": 0} | end, EndHeader
    )
    assert sum(gap.count for gap in tracker.before_end(header)) == lost
    assert tracker.before_end(header) == ()


def test_an_end_before_any_record_is_no_gap() -> None:
    assert GapTracker().before_end(EndHeader(camera="cam", reason="stopped", stream_epoch=0, next_seq=5)) == ()


def test_gaps_of_skipped_records_add_up() -> None:
    merged = merge([Gap(GapKind.WIRE_LOSS, "a", 1), Gap(GapKind.RESTART, "a", 1), Gap(GapKind.WIRE_LOSS, "a", 2)])
    assert merged == (Gap(GapKind.WIRE_LOSS, "a", 3), Gap(GapKind.RESTART, "a", 1))


def test_the_least_recently_seen_cameras_are_forgotten() -> None:
    """Unlimited names must not fill the memory, and must not evict a camera that keeps publishing."""
    tracker = GapTracker()
    tracker.before_record(record(0, 0, camera="active"))
    tracker.before_record(record(0, 0, camera="silent"))
    for number in range(MAX_CAMERAS - 1):
        tracker.before_record(record(0, 0, camera=f"other{number}"))
        tracker.before_record(record(number + 1, number + 1, camera="active"))
    assert tracker.before_record(record(MAX_CAMERAS + 8, MAX_CAMERAS + 8, camera="active"))
    assert not tracker.before_record(record(9, 9, camera="silent"))
