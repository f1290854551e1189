"""Picks records of one kind out of what a subscriber received."""

from collections.abc import Callable, Iterable

from retinad.client import EndRecord, FeaturesRecord, Record, StatusRecord


def is_end(record: Record) -> bool:
    """Whether a record is a camera's last."""
    return isinstance(record, EndRecord)


def record_of(name: str, at_least: int = 0) -> Callable[[Record], bool]:
    """A test for features records of one camera from a sequence number on."""
    return lambda record: isinstance(record, FeaturesRecord) and record.camera == name and record.seq >= at_least


def features_of(records: Iterable[Record], name: str | None = None) -> list[FeaturesRecord]:
    """The features records, of all cameras or of one."""
    return [record for record in records if isinstance(record, FeaturesRecord) and name in (None, record.camera)]


def ends_of(records: Iterable[Record]) -> list[EndRecord]:
    """The end records."""
    return [record for record in records if isinstance(record, EndRecord)]


def statuses_of(records: Iterable[Record]) -> list[StatusRecord]:
    """The status records."""
    return [record for record in records if isinstance(record, StatusRecord)]
