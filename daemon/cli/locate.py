"""`retinad locate`: finds where a picture was taken. With --endpoint, it needs the base install only."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..exit_codes import ExitCode

if TYPE_CHECKING:
    from retinad.client import FeaturesRecord


def locate(
    camera: Annotated[str, typer.Argument(metavar="CAMERA", help="The camera whose memory is asked.")],
    picture: Annotated[Path, typer.Argument(metavar="PICTURE", readable=False, help="An image file, such as a JPEG.")],
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="ENDPOINT", help="The service's publish.locate_endpoint. By default that of the config."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            readable=False,
            help="The config of the running service.",
            show_default="config.toml",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.001, max=3600, help="How long to wait.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    client_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="This client's secret key, for a service that encrypts."),
    ] = None,
    server_key: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="The public key of a service that encrypts.")
    ] = None,
) -> None:
    """Find where a picture was taken, from what a camera of the running service remembers. The camera does not notice.

    The service needs publish.locate_endpoint, and the camera the output pose.
    """
    from retinad.client import CurveKeys, Locator, QueryError, WireError

    if (client_key is None) != (server_key is None):
        raise typer.BadParameter("--client-key and --server-key belong together")
    curve = CurveKeys(client_key, server_key) if client_key and server_key else None
    try:
        data = picture.read_bytes()
    except OSError as error:
        raise _failed(f"{picture} cannot be read: {error.strerror}", ExitCode.NO_INPUT) from error
    address = endpoint or _configured(config)
    try:
        with Locator(address, curve=curve) as locator:
            record = locator.locate(camera, data, timeout_s=timeout)
    except (TimeoutError, WireError) as error:
        raise _failed(str(error), ExitCode.UNAVAILABLE) from error
    except QueryError as error:
        raise _failed(f"{picture} was not located: {error}", ExitCode.UNAVAILABLE) from error
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(_as_json(record) if as_json else _as_text(record))


def _configured(path: Path | None) -> str:
    from ..config.load import load_publishing, read_document
    from .common import DEFAULT_CONFIG, reported_errors
    from .running import running_service

    service = running_service(path or DEFAULT_CONFIG)
    with reported_errors():
        publishing = load_publishing(read_document(service.started), service.environment)
    found = None if publishing is None else publishing.publish.locate_endpoint
    if found is None:
        raise _failed("the service runs without publish.locate_endpoint: set it, and restart", ExitCode.CONFIG)
    return found


def _failed(message: str, code: ExitCode) -> typer.Exit:
    typer.echo(f"retinad: {message}", err=True)
    return typer.Exit(code)


def _as_text(record: "FeaturesRecord") -> str:
    import numpy as np

    pose, camera = record.world_from_camera, record.source_intrinsics
    unit = record.geometry.unit if record.geometry and record.geometry.unit != "stream" else "stream unit"
    degrees = math.degrees(math.acos(max(-1.0, min(1.0, (float(np.trace(pose[:, :3])) - 1) / 2))))
    lines = [
        "position {:.4g} {:.4g} {:.4g}".format(*pose[:, 3]) + f", in {unit}s",
        "looks towards {:.3f} {:.3f} {:.3f}, turned by {:.1f} degrees".format(*pose[:, 2], degrees),
        f"focal lengths {camera[0, 0]:.1f} and {camera[1, 1]:.1f} pixels",
    ]
    if "depth" in record.tensors:
        depth = record.depth[np.isfinite(record.depth)].astype(np.float32)
        lines.append(f"median depth {np.median(depth):.4g}" if depth.size else "no pixel has a depth")
    if record.context is not None:
        lines.append(f"from {record.context.frames - 1} frames and the traces of {record.context.history_frames} more")
    if "random_weights" in record.flags:
        lines.append("the model's weights are random: these numbers mean nothing")
    return "\n".join(lines)


def _as_json(record: "FeaturesRecord") -> str:
    import msgspec

    found = {
        "camera": record.camera,
        "world_from_camera": record.world_from_camera.tolist(),
        "intrinsics": record.intrinsics.tolist(),
        "source_intrinsics": record.source_intrinsics.tolist(),
        "geometry": record.geometry,
        "flags": record.flags,
    }
    return msgspec.json.encode(found).decode()
