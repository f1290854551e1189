"""Chooses a stream's keyframes by motion: how far the image has moved since the last keyframe.

A frame's pose is known only after its step. By then the frame has entered the memory, or it has not. So each frame
decides about the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..frames import Features, OutputKind
from ..geometry.epochs import DepthMap
from ..geometry.flow import DepthView, mean_flow
from ..geometry.pose import intrinsics, world_from_camera
from .pose_outputs import ENCODING

_PIXELS = 4096
"""Approximate number of pixels of a depth map that the flow is averaged over."""


@dataclass(frozen=True, slots=True)
class SavedView:
    """A `DepthView` in a state file, without its depth, which is stored beside.

    Attributes:
        pose: the 12 numbers of the pose, row by row.
        intrinsics: the 9 numbers of the camera matrix, row by row.
        stride: see `DepthView.stride`.
        size: rows and columns of the depth.
    """

    pose: tuple[float, ...]
    intrinsics: tuple[float, ...]
    stride: int
    size: tuple[int, int]


@dataclass(slots=True, eq=False)
class KeyframeMotion:
    """Measures how far a stream's image moves from keyframe to keyframe.

    Attributes:
        threshold_px: mean flow in pixels of the model's image, above which the next frame is to be a keyframe.
        map_stride: see `OutputConfig.map_stride`.
        view: the last keyframe whose depth is known; None before the first one.
    """

    threshold_px: float
    map_stride: int = 1
    view: DepthView | None = None

    def restart(self) -> None:
        """Forget the last keyframe."""
        self.view = None

    def measure(self, features: Features) -> float | None:
        """The mean flow in pixels from the last keyframe to a frame.

        Args:
            features: the frame's record, with its pose in the epoch's own frame of reference.

        Returns:
            None if no pixel of the keyframe can be followed, or the frame has no valid pose, or there is no keyframe.
        """
        pose = world_from_camera(_encoding(features))
        return None if pose is None or self.view is None else mean_flow(self.view, pose)

    def decide(self, features: Features, flow_px: float | None) -> bool:
        """Take note of a frame, and decide whether the next one is to be a keyframe.

        If no pixel of the last keyframe can be followed, the image has moved too far.

        Args:
            features: the frame's record.
            flow_px: what `measure` returned for it.
        """
        if features.keyframe:
            self.view = self._view(features) or self.view
            return False
        return self.view is not None and (flow_px is None or flow_px > self.threshold_px)

    def saved(self) -> SavedView | None:
        """The last keyframe without its depth, for a state file; None if there is none."""
        view = self.view
        if view is None:
            return None
        pose, matrix = view.pose.ravel().tolist(), view.intrinsics.ravel().tolist()
        return SavedView(tuple(pose), tuple(matrix), view.stride, (view.depth.shape[0], view.depth.shape[1]))

    def restore(self, saved: SavedView, depth: DepthMap) -> None:
        """Continue from a saved keyframe.

        Raises:
            ValueError: its numbers are not as many as those of a pose and a camera matrix.
        """
        pose, matrix = np.array(saved.pose).reshape(3, 4), np.array(saved.intrinsics).reshape(3, 3)
        self.view = DepthView(depth, saved.stride, matrix, pose)

    def _view(self, features: Features) -> DepthView | None:
        encoding = _encoding(features)
        pose, matrix = world_from_camera(encoding), intrinsics(encoding, *features.model_size)
        maps = [tensor.data for tensor in features.tensors if tensor.output.name == OutputKind.DEPTH]
        if pose is None or matrix is None or not maps:
            return None
        step = max(1, round((maps[0].size / _PIXELS) ** 0.5))
        depth = maps[0][::step, ::step].astype(np.float32)
        return DepthView(depth, step * self.map_stride, matrix, pose)


def _encoding(features: Features) -> Sequence[float]:
    (encoding,) = (tensor.data for tensor in features.tensors if tensor.output is ENCODING)
    return [float(number) for number in encoding]
