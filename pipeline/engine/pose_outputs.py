"""The output heads that publish poses. On the host, further tensors are derived from their output.

The camera head of LingBot-Map makes an encoding of each frame, from which `trajectory` derives matrices. That of
HorizonStream makes one of each frame of the window, of which `window_poses` makes the encoding of the frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..frames import Output, OutputKind
from ..model.camera_head import POSE_CHANNELS, CameraHead
from ..model.horizon_heads import in_metres, metric_scale, window_poses
from ..model.scale_head import MetricScaleHead
from .outputs import HeadInputs
from .token_shape import TokenShape

ENCODING = Output("pose/encoding", (POSE_CHANNELS,), "float32", OutputKind.POSE)
"""The camera head's numbers, in the frame and scale of the present epoch: see `CameraHead.forward`."""

WINDOW = "pose/window"
"""Name of the encodings [W, 9] of a window's frames, as HorizonStream's head makes them, in metres. Never published."""

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


@dataclass(frozen=True, slots=True, eq=False)
class WindowPoseOutput:
    """Makes the poses of each frame's window; implements `OutputHead`.

    Attributes:
        layer: the deepest layer pair.
        head: estimates the poses.
        scale: estimates how many metres the network's unit has.
    """

    layer: int
    head: CameraHead
    scale: MetricScaleHead

    @property
    def kind(self) -> OutputKind:
        """Pose."""
        return OutputKind.POSE

    @property
    def layers(self) -> tuple[int, ...]:
        """The deepest layer pair."""
        return (self.layer,)

    def outputs(self, shape: TokenShape) -> tuple[Output, ...]:
        """The encodings of the window's frames."""
        return (Output(WINDOW, (shape.window, POSE_CHANNELS), "float32", OutputKind.POSE),)

    def gather(self, inputs: HeadInputs, targets: Sequence[Tensor]) -> None:
        """See `OutputHead.gather`."""
        (layer,) = inputs.layers
        assert layer.slots is not None, "the deepest pair of this network has them"
        targets[0].copy_(in_metres(window_poses(self.head, layer.slots), metric_scale(self.scale, layer)))
