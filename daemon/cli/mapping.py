"""`retinad trajectory` and `retinad cloud`: paths and points from poses and depths. Need the base install only.

A PNG needs OpenCV, and a recording the server's packages.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..exit_codes import ExitCode, JobError

if TYPE_CHECKING:
    from ..mapping.collect import IsStopped
    from ..mapping.frames import FrameSource

_Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A service, tcp://HOST:PORT or ipc:///PATH, or a folder that `retinad extract` wrote."
    ),
]
_Camera = Annotated[
    str | None,
    typer.Argument(metavar="CAMERA", help="The camera of the service, if several publish poses.", show_default=False),
]
_Frames = Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop after this many frames.")]
_Seconds = Annotated[float | None, typer.Option(metavar="S", min=0, help="Stop after this many seconds.")]
_SaveEvery = Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Interval at which files are replaced.")]
_ClientKey = Annotated[
    Path | None,
    typer.Option(metavar="FILE", readable=False, help="This client's secret key, for a service that encrypts."),
]
_ServerKey = Annotated[
    Path | None, typer.Option(metavar="FILE", readable=False, help="The public key of a service that encrypts.")
]


def trajectory(
    source: _Source,
    output: Annotated[
        list[Path],
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            readable=False,
            help="NAME.svg or NAME.png, a plot; NAME.tum.txt or NAME.kitti.txt, poses. Repeatable.",
        ),
    ],
    camera: _Camera = None,
    frames: _Frames = None,
    seconds: _Seconds = None,
    save_every: _SaveEvery = 5.0,
    max_poses: Annotated[
        int, typer.Option(metavar="N", min=4, help="Keep at most this many poses; older ones are thinned.")
    ] = 100_000,
    client_key: _ClientKey = None,
    server_key: _ServerKey = None,
) -> None:
    """Plot a camera's path, and write its poses as text. The files are replaced every few seconds; Ctrl-C ends it.

    Examples: `retinad trajectory tcp://127.0.0.1:5555 robot -o path.svg -o path.tum.txt`,
    `retinad trajectory features/ -o path.kitti.txt`.

    Positions are in the stream's unit, poses map camera to world coordinates, and TUM timestamps are seconds.
    """
    from ..mapping.collect import Limits, collect
    from ..mapping.path import CameraPath
    from ..mapping.results import TRAJECTORY_FORMS, PathResult
    from ..mapping.targets import find_targets

    with _reported(client_key, server_key) as is_stopped:
        targets = find_targets(output, TRAJECTORY_FORMS)
        if any(target.form == "png" for target in targets):
            from ..mapping.png import check_opencv

            check_opencv()
        with _opened(source, camera, ("pose",), (client_key, server_key), is_stopped) as opened:
            result = PathResult(opened, CameraPath(max_poses), _say)
            code = collect(opened, result, targets, Limits(save_every, frames, seconds), _say, is_stopped)
    raise typer.Exit(code)


def cloud(
    source: _Source,
    output: Annotated[
        list[Path], typer.Option("--output", "-o", metavar="FILE", readable=False, help="NAME.ply; repeatable.")
    ],
    camera: _Camera = None,
    voxel: Annotated[
        float, typer.Option(metavar="LENGTH", help="Keep one point in each cube of this width, in the stream's unit.")
    ] = 0.02,
    min_confidence: Annotated[
        float, typer.Option(metavar="NUMBER", help="Leave out pixels with less confidence; all are above 1.")
    ] = 0.0,
    colour: Annotated[
        str,
        typer.Option(
            metavar="height|confidence|image",
            help="What colours show. image: a recording's own, if it is still there.",
        ),
    ] = "height",
    every: Annotated[int, typer.Option(metavar="N", min=1, help="Use every N-th frame that has a depth.")] = 1,
    frames: _Frames = None,
    seconds: _Seconds = None,
    save_every: _SaveEvery = 5.0,
    max_points: Annotated[
        int, typer.Option(metavar="N", min=1, help="Keep at most this many points; beyond it, voxels grow.")
    ] = 2_000_000,
    client_key: _ClientKey = None,
    server_key: _ServerKey = None,
) -> None:
    """Write the points that a camera sees as a PLY file. It is replaced every few seconds; Ctrl-C ends it.

    Examples: `retinad cloud tcp://127.0.0.1:5555 robot -o room.ply --min-confidence 2`,
    `retinad cloud features/ -o room.ply --colour image`.

    Of the points in a voxel, the one with the highest confidence is kept.
    """
    from ..mapping.collect import Limits, collect
    from ..mapping.results import CLOUD_FORMS, COLOURS, CloudResult
    from ..mapping.targets import find_targets
    from ..mapping.voxels import VoxelCloud

    with _reported(client_key, server_key) as is_stopped:
        chosen = next((each for each in COLOURS if each == colour), None)
        if chosen is None:
            raise JobError(ExitCode.USAGE, f"--colour: expected {', '.join(COLOURS)}, got {colour!r}")
        if chosen == "image" and "://" in source:
            raise JobError(ExitCode.USAGE, "--colour image: a service publishes no images; it works with a recording")
        if not 0 < voxel < float("inf"):
            raise JobError(ExitCode.USAGE, f"--voxel: expected a length above 0, got {voxel:g}")
        targets = find_targets(output, CLOUD_FORMS)
        keys, needed = (client_key, server_key), ("pose", "depth")
        with _opened(source, camera, needed, keys, is_stopped, with_pictures=chosen == "image") as opened:
            points = VoxelCloud(voxel, max_points)
            result = CloudResult(opened, points, _say, min_confidence, chosen, every)
            code = collect(opened, result, targets, Limits(save_every, frames, seconds), _say, is_stopped)
    raise typer.Exit(code)


@contextmanager
def _opened(
    source: str,
    camera: str | None,
    needed: tuple[str, ...],
    keys: tuple[Path | None, Path | None],
    is_stopped: "IsStopped",
    *,
    with_pictures: bool = False,
) -> "Iterator[FrameSource]":
    if "://" in source:
        from retinad.client import CurveKeys

        from ..mapping.service import open_service

        client, server = keys
        curve = CurveKeys(client, server) if client and server else None
        with open_service(source, camera, needed, curve, _say, is_stopped) as opened:
            _say(f"following camera {opened.name}; Ctrl-C ends it")
            yield opened
        return
    from ..mapping.recorded import open_extraction

    if camera is not None:
        raise JobError(ExitCode.USAGE, f"an extraction has one camera only, but {camera} is named")
    if with_pictures:
        from ..mapping.pictures import open_pictures

        yield open_extraction(Path(source), needed, _say, open_pictures)
    else:
        yield open_extraction(Path(source), needed, _say)


@contextmanager
def _reported(client_key: Path | None, server_key: Path | None) -> "Iterator[IsStopped]":
    from ..mapping.collect import stop_signals

    if (client_key is None) != (server_key is None):
        raise typer.BadParameter("--client-key and --server-key belong together")
    try:
        with stop_signals() as is_stopped:
            yield is_stopped
    except JobError as error:
        if error.code is not ExitCode.OK:
            typer.echo(f"retinad: {error}", err=True)
        raise typer.Exit(error.code) from error
    except KeyboardInterrupt:  # a second Ctrl-C: files are either whole or as they were
        raise typer.Exit(ExitCode.INCOMPLETE) from None


def _say(text: str) -> None:
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    sys.stderr.write(f"{plain}\n")
    sys.stderr.flush()
