"""Prints a service's messages, one line each, and saves their tensors. Needs the base install only."""

import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from retinad.client import (
    CurveKeys,
    EndRecord,
    FeaturesRecord,
    Gap,
    HelloRecord,
    Kind,
    Record,
    StatusRecord,
    Subscriber,
    WireError,
)

from ..exit_codes import ExitCode
from .pose_words import pose_words

HINT_INTERVAL_S = 10.0
"""Interval in seconds at which silence is reported if no timeout is set."""
REFUSAL_S = 2.0
"""Time in seconds after which a refused connection is reported."""
SAVE_LIMIT_GB = 10.0
"""Default limit, in GB, on the total size of saved records: without it, a forgotten command would fill the disk."""
UNREADABLE_AT_MOST = 10
"""Number of unreadable messages in a row after which the command gives up: the service must be of another version."""


def print_messages(
    *,
    endpoint: str,
    cameras: Sequence[str] = (),
    kinds: Sequence[str] = (),
    save: Path | None = None,
    save_limit_gb: float = SAVE_LIMIT_GB,
    count: int | None = None,
    timeout_s: float | None = None,
    latest: bool = False,
    as_json: bool = False,
    curve: CurveKeys | None = None,
    output: TextIO | None = None,
) -> int:
    """Print what a service publishes until interrupted, and return the exit code.

    Args:
        endpoint: where the service publishes.
        cameras: names of cameras; empty for all.
        kinds: kinds of messages; empty for features and ends.
        save: folder for one `.npz` per features record, or None.
        save_limit_gb: maximum size, in GB, of what this call saves in the folder; then it stops.
        count: number of messages after which to stop, or None for no limit.
        timeout_s: seconds without a message after which to give up, or None for never.
        latest: whether to skip to the newest record when behind.
        as_json: whether lines are JSON objects.
        curve: keys for a service that encrypts, or None.
        output: where the lines go; None for standard output.
    """
    try:
        wanted = tuple(_named_kind(kind) for kind in kinds) or (Kind.FEATURES, Kind.END)
        subscriber = Subscriber(endpoint, cameras=cameras, kinds=wanted, latest_only=latest, curve=curve)
    except ValueError as exc:
        return _complain(f"{exc}", ExitCode.USAGE)
    with subscriber:
        try:
            saver = None if save is None else _Saver(save, save_limit_gb)
            return _print_records(subscriber, output or sys.stdout, count, timeout_s, saver, as_json)
        except (KeyboardInterrupt, BrokenPipeError):  # the command was stopped, or nobody reads its lines any more
            return ExitCode.OK
        except _SaveError as exc:
            return _complain(f"{exc}", exc.code)
        except OSError as exc:
            return _complain(f"standard output cannot be written: {exc.strerror}", ExitCode.IO_ERROR)


class _SaveError(Exception):
    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


class _Saver:
    # Saves records to a folder, up to a limit.
    def __init__(self, folder: Path, limit_gb: float) -> None:
        self._folder = folder
        self._limit_gb = limit_gb
        self._bytes = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as exc:
            raise _SaveError(f"{folder} exists and is not a folder", ExitCode.UNAVAILABLE) from exc
        except OSError as exc:
            raise _SaveError(f"the folder {folder} cannot be created: {exc.strerror}", ExitCode.UNAVAILABLE) from exc

    def save(self, record: FeaturesRecord) -> None:
        if self._bytes >= self._limit_gb * 1e9:
            advice = "remove or move what is there, or raise --save-limit"
            raise _SaveError(f"{self._limit_gb:g} GB are saved in {self._folder}: {advice}", ExitCode.IO_ERROR)
        path = self._folder / file_name(record)
        try:
            record.save_npz(path)
            self._bytes += path.stat().st_size
        except OSError as exc:
            raise _SaveError(f"{path} cannot be written: {exc.strerror}", ExitCode.IO_ERROR) from exc


def _named_kind(name: str) -> Kind:
    if name not in list(Kind):
        raise ValueError(f"unknown kind of message {name!r}: expected one of {', '.join(Kind)}")
    return Kind(name)


def _print_records(
    subscriber: Subscriber,
    output: TextIO,
    count: int | None,
    timeout_s: float | None,
    saver: _Saver | None,
    as_json: bool,
) -> int:
    printed = unreadable = 0
    while count is None or printed < count:
        try:
            record = _receive(subscriber, timeout_s)
        except TimeoutError as exc:
            return _complain(f"{exc}", ExitCode.UNAVAILABLE)
        except WireError as exc:
            unreadable += 1
            code = _complain(f"unreadable message: {exc}", ExitCode.UNAVAILABLE)
            if unreadable == UNREADABLE_AT_MOST:
                return code
            continue
        unreadable = 0
        if saver is not None and isinstance(record, FeaturesRecord):
            saver.save(record)
        output.write((json_line(record) if as_json else text_line(record)) + "\n")
        output.flush()
        printed += 1
    return ExitCode.OK


def _receive(subscriber: Subscriber, timeout_s: float | None) -> Record:
    if timeout_s is not None:
        return subscriber.receive(timeout_s)
    waits_s = itertools.chain([REFUSAL_S, HINT_INTERVAL_S - REFUSAL_S], itertools.repeat(HINT_INTERVAL_S))
    for number, wait_s in enumerate(waits_s):
        try:
            return subscriber.receive(wait_s)
        except TimeoutError as exc:
            if number or subscriber.refusal:  # a refusal needs no patience
                _complain(f"{exc}; still waiting", ExitCode.OK)
    raise AssertionError("the waits never end")


def file_name(record: FeaturesRecord) -> str:
    """The name of a record's file. Service start, connection and number are part of it, so no file replaces another."""
    instance = re.sub(r"[^A-Za-z0-9_-]", "_", record.instance)[:16]
    return f"{record.camera}-{instance}-{record.stream_epoch:04d}-{record.seq:08d}.npz"


def json_line(record: Record) -> str:
    """A record as one JSON object: the keys of its header, `kind` and `gaps`. Tensors are described, not included."""
    header = record.header() if isinstance(record, FeaturesRecord) else record
    return msgspec.json.encode({"kind": _kind(record), **msgspec.to_builtins(header), "gaps": record.gaps}).decode()


def text_line(record: Record) -> str:
    """A record as one line for people. Control characters, which could steer a terminal, are replaced."""
    words = [_kind(record).value, *_words(record), *(_gap_word(gap) for gap in record.gaps)]
    return "".join(letter if letter.isprintable() else "?" for letter in "  ".join(words))


def _kind(record: Record) -> Kind:
    match record:
        case FeaturesRecord():
            return Kind.FEATURES
        case StatusRecord():
            return Kind.STATUS
        case EndRecord():
            return Kind.END
        case HelloRecord():
            return Kind.HELLO


def _words(record: Record) -> list[str]:
    match record:
        case FeaturesRecord():
            return _features_words(record)
        case StatusRecord():
            return _status_words(record)
        case EndRecord():
            return [
                record.camera,
                record.reason,
                f"captured {record.captured_total}{_expected_words(record)}",
                f"published {record.published_total}",
                f"dropped {record.dropped_total}",
                f"failed {record.failed_total}",
            ]
        case HelloRecord():
            cameras = ", ".join(f"{camera.name} ({camera.state})" for camera in record.cameras)
            models = ", ".join(f"{model.name} {model.weights}" for model in record.models)
            return [
                f"retinad {record.version}",
                f"model {models or 'none'}",
                f"cameras {cameras or 'none'}",
                *([f"outputs {', '.join(record.outputs)}"] if record.outputs else []),
            ]


def _expected_words(record: EndRecord) -> str:
    if record.expected_total is None:
        return ""
    words = "of" if record.captured_total <= record.expected_total else "in passes of"  # looped, or reopened
    return f" {words} {record.expected_total}"


def _features_words(record: FeaturesRecord) -> list[str]:
    latency = record.latency_us
    layouts = [record.tensors.layout(name) for name in record.tensors]
    total_ms = (latency.queue + latency.preprocess + latency.model + latency.publish) / 1000
    return [
        record.camera,
        f"seq {record.seq}",
        f"{record.source_size[0]}x{record.source_size[1]}",
        f"{total_ms:.1f} ms old",
        f"{len(layouts)} tensor{'s' * (len(layouts) != 1)}, {sum(layout.nbytes for layout in layouts) / 1e6:.3f} MB",
        *pose_words(record),
        *record.flags,
    ]


def _status_words(record: StatusRecord) -> list[str]:
    return [
        record.camera,
        record.state,
        *([record.reason] if record.reason else []),
        *([f"next try in {record.next_try_s:.1f} s"] if record.next_try_s is not None else []),
        *_rate_words(record),
        f"published {record.published_total}",
        f"dropped {record.dropped_total}",
        f"failed {record.failed_total}",
    ]


def _rate_words(record: StatusRecord) -> list[str]:
    if record.fps is None:
        return []
    words = [f"{record.fps:.1f} frames/s"]
    if record.published_fps is not None:
        words = [f"source {words[0]}", f"published {record.published_fps:.1f} frames/s"]
    return [*words, *([record.overload] if record.overload else [])]


def _gap_word(gap: Gap) -> str:
    return f"[{gap.kind} {gap.count}]"


def _complain(text: str, code: ExitCode) -> ExitCode:
    sys.stderr.write(f"retinad: {text}\n")
    sys.stderr.flush()
    return code
