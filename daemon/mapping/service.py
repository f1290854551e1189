"""Frames with poses from a running service. Finds out from `hello` which camera publishes them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from retinad.client import CurveKeys, EndRecord, FeaturesRecord, HelloRecord, Kind, Record, Subscriber, WireError
from retinad.client.record import depth_view

from ..exit_codes import ExitCode, JobError
from .frames import FrameSource, PosedFrame, finite_pose

TICK_S = 0.5
"""Seconds without a message after which the caller may do something else."""
HINT_INTERVAL_S = 10.0
"""Interval in seconds at which silence is explained."""
UNREADABLE_AT_MOST = 10
"""Number of unreadable messages in a row after which the service counts as one of another version."""
_CONFIG = 'set `outputs = ["pose", "depth"]` in [model], and the camera\'s `outputs` if it has any'
_DEPTH_TENSORS = {"depth", "depth_confidence", "pose/intrinsics", "pose/world_from_camera"}

Say = Callable[[str], None]
IsStopped = Callable[[], bool]


@contextmanager
def open_service(
    endpoint: str, camera: str | None, needed: tuple[str, ...], curve: CurveKeys | None, say: Say, is_stopped: IsStopped
) -> Iterator[FrameSource]:
    """Subscribe to a camera's poses.

    Args:
        endpoint: where the service publishes.
        camera: the camera's name; None if there is only one with the needed outputs.
        needed: kinds of outputs that the camera must publish.
        curve: keys for a service that encrypts, or None.
        say: prints a line for people.
        is_stopped: whether to give up waiting.

    Raises:
        JobError: the endpoint is wrong, or no camera, or more than one, publishes what is needed.
    """
    try:
        with Subscriber(endpoint, kinds=(Kind.HELLO,), curve=curve) as hello:
            chosen = _choose(hello, endpoint, camera, needed, say, is_stopped)
        subscriber = Subscriber(endpoint, cameras=(chosen,), kinds=(Kind.FEATURES, Kind.END), curve=curve)
    except ValueError as error:
        raise JobError(ExitCode.USAGE, str(error)) from error
    with subscriber:
        name = f"{chosen} of {endpoint}"
        yield FrameSource(name, _frames(_records(subscriber, endpoint, say), say), "1970-01-01 UTC")


def posed_frame(record: FeaturesRecord) -> PosedFrame:
    """The parts of a record that matter here."""
    geometry, names = record.geometry, record.tensors.keys()
    pose = finite_pose(record.world_from_camera) if "pose/world_from_camera" in names else None
    return PosedFrame(
        world_epoch=record.epoch if geometry is None else geometry.world_epoch,
        epoch=record.epoch,
        epoch_frame=record.epoch_frame,
        time_ns=record.capture_unix_ns,
        unit="stream" if geometry is None else geometry.unit,
        doubt=None if geometry is None else geometry.alignment.reason,
        pose=pose,
        view=depth_view(record) if pose is not None and _has_depth(record) else None,
    )


def _has_depth(record: FeaturesRecord) -> bool:
    if not record.tensors.keys() >= _DEPTH_TENSORS:
        return False
    depth = record.depth
    return depth.ndim == 2 and record.depth_confidence.shape == depth.shape and record.intrinsics.shape == (3, 3)


def _choose(
    hello: Subscriber, endpoint: str, camera: str | None, needed: tuple[str, ...], say: Say, is_stopped: IsStopped
) -> str:
    for record in _records(hello, endpoint, say):
        if is_stopped():
            raise JobError(ExitCode.OK, "stopped")
        if isinstance(record, HelloRecord) and record.cameras:
            return _chosen(record, camera, needed)
    raise AssertionError("records never end")


def _chosen(hello: HelloRecord, camera: str | None, needed: tuple[str, ...]) -> str:
    wanted = " and ".join(needed)
    outputs = {each.name: each.outputs for each in hello.cameras}
    if camera is not None and camera not in outputs:
        raise JobError(ExitCode.USAGE, f"the service has no camera {camera}; it has {', '.join(outputs)}")
    # A service of an earlier version does not say what its cameras publish.
    fitting = [name for name, kinds in outputs.items() if not kinds or set(needed) <= set(kinds)]
    if camera is not None and camera not in fitting:
        raise JobError(
            ExitCode.UNAVAILABLE, f"camera {camera} publishes {', '.join(outputs[camera])}, not {wanted}: {_CONFIG}"
        )
    if camera is None and not fitting:
        raise JobError(ExitCode.UNAVAILABLE, f"no camera of the service publishes {wanted}: {_CONFIG}")
    if camera is None and len(fitting) > 1:
        raise JobError(ExitCode.USAGE, f"several cameras publish {wanted}: name one of {', '.join(fitting)}")
    return camera or fitting[0]


def _records(subscriber: Subscriber, endpoint: str, say: Say) -> Iterator[Record | None]:
    # Yields None after each tick of silence.
    silent_s = hinted_s = 0.0
    unreadable = 0
    while True:
        try:
            record = subscriber.receive(TICK_S)
        except TimeoutError as error:
            silent_s += TICK_S
            if silent_s - hinted_s >= HINT_INTERVAL_S:
                hinted_s = silent_s
                reason = str(error).partition(" s: ")[2]
                say(f"no message from {endpoint} in {silent_s:.0f} s: {reason}; still waiting")
            yield None
        except WireError as error:
            unreadable += 1
            if unreadable == UNREADABLE_AT_MOST:
                raise JobError(ExitCode.UNAVAILABLE, f"unreadable messages: {error}") from error
        else:
            silent_s = hinted_s = unreadable = 0
            yield record


def _frames(records: Iterator[Record | None], say: Say) -> Iterator[PosedFrame | None]:
    for record in records:
        match record:
            case FeaturesRecord():
                yield posed_frame(record)
            case EndRecord() if record.reason.startswith("finished"):
                return
            case EndRecord():
                say(f"camera {record.camera} has ended ({record.reason}); waiting for it to return")
            case _:
                yield None
