"""Print every record of a running service: camera, sequence number, tensors, and what is missing before it."""

import argparse

from retinad.client import FeaturesRecord, Subscriber


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoint", nargs="?", default="tcp://127.0.0.1:5555")
    parser.add_argument("--camera", action="append", default=[], help="repeatable; all cameras if not given")
    options = parser.parse_args()

    with Subscriber(options.endpoint, cameras=options.camera, timeout_s=30) as subscriber:
        for record in subscriber:
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
    main()
