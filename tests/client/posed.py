"""Messages of a camera that moves through a drawn scene, with true poses and depths in place of a network's."""

import numpy as np
import numpy.typing as npt

from retinad.client.wire import AlignmentHeader, Buffer, GeometryHeader, TensorHeader, encode_features

from .messages import header

SIZE = (30, 20)
CAMERA = np.array([[25.0, 0, 15], [0, 25, 10], [0, 0, 1]], np.float32)
WALL = 8.0
"""Distance of a wall from the camera's first position, along its own z."""


def posed_message(instance: str, camera: str, seq: int, *, stride: int = 1) -> list[Buffer]:
    """The parts of a record: the camera is at (0, 0, seq) and looks at the wall; confidences are 3, on the left 1."""
    pose = np.eye(3, 4, dtype=np.float32)
    pose[2, 3] = seq
    depth = np.full((SIZE[1], SIZE[0]), WALL - seq, np.float16)[::stride, ::stride]
    confidence = np.full(depth.shape, 3, np.float16)
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "pose/world_from_camera": pose,
        "pose/intrinsics": CAMERA,
        "pose/source_intrinsics": np.diag([2.0, 2, 1]).astype(np.float32) @ CAMERA,
        "depth": depth,
        "depth_confidence": confidence,
    }
    tensors = [
        TensorHeader(name=name, dtype=array.dtype.str, shape=array.shape, nbytes=array.nbytes)
        for name, array in arrays.items()
    ]
    fields = header(*tensors, camera=camera, seq=seq)
    geometry = GeometryHeader(world_epoch=0, map_stride=stride, alignment=AlignmentHeader())
    made = type(fields)(
        **{name: getattr(fields, name) for name in fields.__struct_fields__}
        | {
            "instance": instance,
            "geometry": geometry,
            "model_size": SIZE,
            "source_size": (2 * SIZE[0], 2 * SIZE[1]),
            "to_source": ((2.0, 0.0, 0.5), (0.0, 2.0, 0.5)),
        }
    )
    return encode_features(made, [memoryview(array.tobytes()) for array in arrays.values()])
