"""The output head that publishes poses, and the tensors that the host derives from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..frames import Affine, Alignment, Output, OutputKind, OutputTensor, Size
from ..geometry.pose import intrinsics, source_intrinsics, world_from_camera
from ..model.camera_head import POSE_CHANNELS, CameraHead
from .outputs import HeadInputs
from .token_shape import TokenShape

ENCODING = Output("pose/encoding", (POSE_CHANNELS,), "float32", OutputKind.POSE)
"""The camera head's numbers, in the frame and scale of the present epoch: see `CameraHead.forward`."""

WORLD_FROM_CAMERA = Output("pose/world_from_camera", (3, 4), "float32", OutputKind.POSE)
"""[R | t]: x_world = R x_camera + t, in the frame and scale of the stream's first epoch."""

INTRINSICS = Output("pose/intrinsics", (3, 3), "float32", OutputKind.POSE)
"""The camera matrix for pixels of the model's image."""

SOURCE_INTRINSICS = Output("pose/source_intrinsics", (3, 3), "float32", OutputKind.POSE)
"""The camera matrix for pixels of the captured frame."""

DERIVED = (WORLD_FROM_CAMERA, INTRINSICS, SOURCE_INTRINSICS)
"""The outputs that the host derives from the encoding."""


@dataclass(frozen=True, slots=True, eq=False)
class PoseOutput:
    """Publishes each frame's pose; implements `OutputHead`.

    Attributes:
        layer: the deepest layer pair.
        head: estimates the poses.
    """

    layer: int
    head: CameraHead

    @property
    def kind(self) -> OutputKind:
        """Pose."""
        return OutputKind.POSE

    @property
    def layers(self) -> tuple[int, ...]:
        """The deepest layer pair."""
        return (self.layer,)

    def outputs(self, shape: TokenShape) -> tuple[Output, ...]:
        """The encoding."""
        return (ENCODING,)

    def gather(self, inputs: HeadInputs, targets: Sequence[Tensor]) -> None:
        """See `OutputHead.gather`."""
        assert inputs.poses is not None, "given if any frame wants a pose"
        tokens = torch.cat([part[:, 0] for part in inputs.layers[0].parts], dim=-1)
        targets[0].copy_(self.head(tokens, inputs.poses))


def with_derived_poses(
    tensors: tuple[OutputTensor, ...], model_size: Size, to_source: Affine, alignment: Alignment
) -> tuple[OutputTensor, ...]:
    """Insert the derived tensors after the encoding, if there is one. Numbers that have no value are NaN.

    Args:
        tensors: the tensors of one frame.
        model_size: width and height of the model's image.
        to_source: maps pixels of the model's image to pixels of the captured frame.
        alignment: maps the epoch's frame of reference to the stream's.
    """
    published: list[OutputTensor] = []
    for tensor in tensors:
        published.append(tensor)
        if tensor.output is ENCODING:
            published += _derived(tensor, model_size, to_source, alignment)
    return tuple(published)


def _derived(encoding: OutputTensor, model_size: Size, to_source: Affine, alignment: Alignment) -> list[OutputTensor]:
    numbers = encoding.data.astype(np.float64)
    pose, camera = world_from_camera(numbers), intrinsics(numbers, *model_size)
    source = None if camera is None else source_intrinsics(camera, np.array(to_source))
    return [
        OutputTensor(output, np.full(output.shape, np.nan, np.float32) if value is None else value.astype(np.float32))
        for output, value in zip(DERIVED, (pose, camera, source), strict=True)
    ]
