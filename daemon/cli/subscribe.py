"""`retinad subscribe`: prints what a service publishes. Needs the base install only."""

from pathlib import Path
from typing import Annotated

import typer


def subscribe(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="tcp://HOST:PORT or ipc:///PATH.")],
    camera: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this camera; repeatable.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="features, status, end or hello; repeatable. By default features and end."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", readable=False, help="Write the tensors of each record to an .npz file."),
    ] = None,
    save_limit: Annotated[
        float, typer.Option(metavar="GB", min=0, help="With --save: stop with code 74 once this many GB are saved.")
    ] = 10.0,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop after this many messages.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="Exit with code 69 after this many seconds without a message."),
    ] = None,
    latest: Annotated[bool, typer.Option("--latest", help="When behind, skip to the newest record.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    client_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="This client's secret key, for a service that encrypts."),
    ] = None,
    server_key: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="The public key of a service that encrypts.")
    ] = None,
) -> None:
    """Print one line for each message that a service publishes.

    For features: camera, sequence number, frame size, age when sent, tensors, flags, and what was lost before it. With
    poses and depths also position, yaw to the right, pitch upwards, and the medians of depth and confidence.
    """
    from retinad.client import CurveKeys

    from .messages import print_messages

    if (client_key is None) != (server_key is None):
        raise typer.BadParameter("--client-key and --server-key belong together")
    code = print_messages(
        endpoint=endpoint,
        cameras=tuple(camera or ()),
        kinds=tuple(kind or ()),
        save=save,
        save_limit_gb=save_limit,
        count=count,
        timeout_s=timeout,
        latest=latest,
        as_json=as_json,
        curve=CurveKeys(client_key, server_key) if client_key and server_key else None,
    )
    raise typer.Exit(code)
