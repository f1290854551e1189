"""The heads of HorizonStream: poses of a window's frames, and the metric scale (arXiv 2605.23889).

Its camera head has the layers of `camera_head`, but no memory: it runs over the slots of one frame's window.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .camera_head import CameraHead
from .network import LayerOutput, Slots
from .scale_head import MetricScaleHead


def metric_scale(head: MetricScaleHead, layer: LayerOutput) -> Tensor:
    """The metric scale of each frame, float32 [F], from the deepest layer."""
    return head.scale(torch.cat([part[:, 0] for part in layer.parts], dim=-1))


def window_poses(head: CameraHead, slots: Slots) -> Tensor:
    """Estimate the poses of the frames of each window.

    Args:
        head: the camera head.
        slots: the pose tokens of F windows of W frames.

    Returns:
        float32 [F, W, 9]: translation in the network's unit, unnormalised quaternion (scalar last), and fields of view.
        A pose maps coordinates of the camera of the window's own frame, roughly, to those of the slot's camera.
    """
    return head.refine(slots.tokens, lambda layer: _SlotsMixer(slots.seen))


def in_metres(poses: Tensor, scale: Tensor) -> Tensor:
    """Scale the translations of poses [F, W, 9] by each frame's metric scale [F]."""
    return torch.cat((poses[..., :3] * scale[:, None, None], poses[..., 3:]), dim=-1)


@dataclass(frozen=True, slots=True)
class _SlotsMixer:
    # Attention among the slots of a window [F, W, 2C].
    seen: Tensor | None

    def __call__(self, layer: nn.Module, tokens: Tensor) -> Tensor:
        out: Tensor = layer(tokens, self._attend)
        return out

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
        mask = None if self.seen is None else self.seen[:, None]
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)
