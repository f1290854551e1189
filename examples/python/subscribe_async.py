"""Follow several services from one asyncio program, always with the newest record of each camera."""

import asyncio
import sys

from retinad.client import AsyncSubscriber, FeaturesRecord


async def main(endpoints: list[str]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for endpoint in endpoints:
            tasks.create_task(follow(endpoint))


async def follow(endpoint: str) -> None:
    # latest_only skips to the newest record when this program falls behind; the gaps say how many were skipped.
    async with AsyncSubscriber(endpoint, latest_only=True) as subscriber:
        async for record in subscriber:
            if isinstance(record, FeaturesRecord):
                show(record)


def show(record: FeaturesRecord) -> None:
    for gap in record.gaps:
        print(f"{record.camera}: {gap.kind} {gap.count}", flush=True)
    width, height = record.source_size
    print(f"{record.camera} {record.seq} {width}x{height} {','.join(record.flags) or '-'}", flush=True)
    for name, array in record.tensors.items():  # numpy arrays; bfloat16 arrives as float32
        print(f"  {name} {list(array.shape)} first {float(array.flat[0]):g}", flush=True)
    if record.geometry is not None and "pose/world_from_camera" in record.tensors:
        x, y, z = record.world_from_camera[:, 3]  # the last column: the camera's position; NaN if it is unknown
        print(f"  camera at {x:g} {y:g} {z:g} ({record.geometry.unit})", flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1:] or ["tcp://127.0.0.1:5555"]))
    except KeyboardInterrupt:
        sys.exit(130)
