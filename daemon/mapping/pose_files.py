"""Text files of poses, in the formats of the TUM RGB-D and KITTI odometry benchmarks, which evo and others read."""

from collections.abc import Iterator

from .path import CameraPath

_SECOND_NS = 10**9


def tum_lines(path: CameraPath, name: str, clock: str) -> Iterator[str]:
    """Yield lines `timestamp tx ty tz qx qy qz qw`, world from camera, in seconds and the stream's unit.

    The first lines are comments. The numbers have nine digits, enough for any float32.

    Args:
        path: the poses.
        name: what the poses are of.
        clock: what the timestamps count from.
    """
    yield f"# {_plain(name)}: world from camera, in the unit {_plain(path.unit)}; seconds since {_plain(clock)}"
    if path.lost:
        yield f"# {path.lost} frames had no pose"
    if path.dropped:
        yield f"# thinned: {path.dropped} of the older poses are left out"
    yield "# timestamp tx ty tz qx qy qz qw"
    for time_ns, pose, quaternion in zip(
        path.rows["time_ns"].tolist(), path.rows["pose"].tolist(), path.rows["quaternion"].tolist(), strict=True
    ):
        seconds, rest = divmod(abs(time_ns), _SECOND_NS)
        numbers = (*(row[3] for row in pose), *quaternion)
        yield f"{'-' * (time_ns < 0)}{seconds}.{rest:09d} {' '.join(f'{number:.9g}' for number in numbers)}"


def kitti_lines(path: CameraPath) -> Iterator[str]:
    """Yield a line of 12 numbers for each pose: world from camera [3, 4] by rows, in the stream's unit."""
    for pose in path.rows["pose"].reshape(-1, 12).tolist():
        yield " ".join(f"{number:.9g}" for number in pose)


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
