"""The output head that publishes poses. `trajectory` derives further tensors from its output, on the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..frames import Output, OutputKind
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
