"""The interface of the networks that the engine runs."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ..config import NetworkConfig
from ..frames import OutputKind
from .attention import CacheStep
from .camera_head import CameraHead
from .dense_head import DenseHead
from .file_keys import LINGBOT_MAP_KEYS, FileKeys
from .scale_head import MetricScaleHead


@dataclass(frozen=True, slots=True)
class FrameNumbers:
    """The positions of a step's F frames in their streams.

    Attributes:
        times: for each frame, the number of frames committed to its stream before it; there is no upper limit.
        first: whether each frame is its stream's very first.
        scale: whether each frame is one of its stream's first `scale_frames`.
        later: for each frame, the number of frames after its stream's first step and before it; None in that step.
        windows: for each frame, the number of frames of its window, itself included; in the first step, all of its
            frames. Only for networks with `slot_tokens`.
    """

    times: tuple[int, ...]
    first: tuple[bool, ...]
    scale: tuple[bool, ...]
    later: tuple[int | None, ...] = ()
    windows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Slots:
    """The pose tokens of HorizonStream, one for each frame of each window.

    Attributes:
        tokens: float32 [F, W, 2C], after the frame block and after the global block.
        seen: bool [F, W, W], which slots each slot sees in the camera head; None if each sees all.
    """

    tokens: Tensor
    seen: Tensor | None


@dataclass(frozen=True, slots=True)
class LayerOutput:
    """The output of one pair of blocks: a frame block, then a global block.

    A network of depth 0 has no pairs. Its one output has `layer` 0, the patch embedding's tokens and no `across`.

    Attributes:
        layer: index of the pair, from 0.
        frame: tokens float32 [F, P, C] after the frame block.
        across: tokens float32 [F, P, C] after the global block, or None.
        slots: the pose tokens of HorizonStream's deepest pair; otherwise None.
    """

    layer: int
    frame: Tensor
    across: Tensor | None
    slots: Slots | None = None

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors that are published side by side: `frame`, and `across` if there is one."""
        return (self.frame,) if self.across is None else (self.frame, self.across)

    def each(self, function: Callable[[Tensor], Tensor]) -> "LayerOutput":
        """Apply a function of tensors whose first axis is the frames to each tensor."""
        across = None if self.across is None else function(self.across)
        slots = self.slots
        if slots is not None:
            slots = Slots(function(slots.tokens), None if slots.seen is None else function(slots.seen))
        return LayerOutput(self.layer, function(self.frame), across, slots)


class Network(nn.Module):
    """Base class of the networks. A network holds only weights; the streams' caches are passed to each step.

    The heads are named as in released checkpoints. A head that no output needs is None.

    Attributes:
        network: the network's shape.
        camera_head: estimates poses.
        depth_head: predicts depth.
        point_head: predicts points.
        scale_head: estimates how many metres the unit of poses and depths has; None if that cannot be known.
        file_keys: how checkpoints name the weights.
    """

    file_keys: ClassVar[FileKeys] = LINGBOT_MAP_KEYS
    network: NetworkConfig
    camera_head: CameraHead | None
    depth_head: DenseHead | None
    point_head: DenseHead | None
    scale_head: MetricScaleHead | None

    def __init__(self) -> None:
        super().__init__()
        self.camera_head = self.depth_head = self.point_head = self.scale_head = None

    def add_heads(self, outputs: Collection[OutputKind]) -> None:
        """Add the heads that these outputs need.

        Raises:
            ValueError: the network cannot have such a head.
        """
        network = self.network
        channels = 2 * network.channels
        if OutputKind.POSE in outputs:
            self.camera_head = CameraHead(channels, network.camera_head)
        if OutputKind.DEPTH in outputs:
            self.depth_head = DenseHead(channels, 1, network.dense_head)
        if OutputKind.POINTS in outputs:
            self.point_head = DenseHead(channels, 3, network.dense_head)

    def forward(
        self, images: Tensor, numbers: FrameNumbers, step: CacheStep, layers: tuple[int, ...]
    ) -> tuple[LayerOutput, ...]:
        """Run one step over F frames.

        Args:
            images: float32 [F, 3, h, w], RGB in [0, 1]; h and w are multiples of the patch size.
            numbers: the positions of the frames in their streams.
            step: the step of the streams' caches; each layer up to the last requested one appends to it and attends.
            layers: indices of the pairs of blocks whose outputs are requested, ascending. Pairs after the last one are
                not run.
        """
        raise NotImplementedError
