"""The pipeline's settings as frozen dataclasses. The daemon fills them from the checked config file."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from .frames import DType as DType
from .frames import OutputKind, TokenGroup
from .view_config import ViewConfig

MemoryDType = Literal["auto", "float8_e4m3fn"]
AttentionName = Literal["auto", "dense", "paged", "flashinfer", "triton"]
ExecutionName = Literal["auto", "plain", "fused", "captured"]
FlashInferKernels = Literal["fa2", "fa3"]
MixerName = Literal["attention", "kda"]
RtspTransport = Literal["tcp", "udp"]


Crop = tuple[int, int, int, int]
"""Left column, top row, width and height, in pixels, of the part of a captured frame that is used."""


class CaptureMode(StrEnum):
    """What happens when frames arrive faster than the model can process them."""

    LIVE = "live"
    """The newest frames are kept; older ones are dropped and counted."""
    LOSSLESS = "lossless"
    """The source waits (backpressure); nothing is dropped."""


class ResizeMode(StrEnum):
    """How a frame is fitted to the model's image size."""

    CROP = "crop"
    """Resize the frame to the model's width; if it is then too high, cut rows off at the top and bottom."""
    PAD = "pad"
    """Resize the frame's larger side to the model's width; fill the rest of the image with white."""
    FIT = "fit"
    """Resize the frame's larger side to the model's width; cut off what is no whole patch, on all sides."""


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Which tokens are kept when their frame leaves the window. The released checkpoints expect the default values.

    Attributes:
        cross_frame_special: whether an evicted frame's special tokens are kept.
        camera_only: whether only the camera token of an evicted frame is kept.
        include_scale_frames: whether the scale frames are kept forever; if not, they are evicted like other frames.
    """

    cross_frame_special: bool = True
    camera_only: bool = False
    include_scale_frames: bool = True


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """A stream's memory: which frames it keeps, and for how long.

    Attributes:
        scale_frames: number of frames at the start of the stream that are attended to forever; at least 1. Their
            features are published together, once the last of these frames has arrived.
        window: number of most recent keyframes whose tokens are all attended to; at least 1.
        keyframe_interval: after the scale frames, every n-th frame enters the memory; the others only read it.
        history_frames: number of most recent evicted frames whose special tokens are attended to; 0 for none. It
            limits a stream's memory use and the cost of its steps.
        retention: which tokens are kept when their frame leaves the window.
        epoch_frames: when the memory holds this number of frames, it is rebuilt from the stream's last `scale_frames`
            frames. 0 for never; otherwise it must be more than `scale_frames`.
        run_frames: maximum number of the stream's waiting frames that one step processes; values above `window` count
            as `window`. The results are the same as with one frame per step, but the cache takes more memory, for the
            additional frames.
        carry_state: whether the state of `kda` blocks is kept when the memory is rebuilt.
        keyframe_flow_px: a frame also enters the memory if the previous one has moved from the last keyframe by more
            than this number of pixels of the model's image, on average. 0 to choose keyframes by their number only.
            Otherwise `keyframe_interval` is the most frames from one keyframe to the next, and each step has one frame.
    """

    scale_frames: int = 8
    window: int = 64
    keyframe_interval: int = 1
    history_frames: int = 1024
    retention: RetentionConfig = RetentionConfig()
    epoch_frames: int = 0
    run_frames: int = 1
    carry_state: bool = False
    keyframe_flow_px: float = 0.0

    def __post_init__(self) -> None:
        at_least = {"scale_frames": 1, "window": 1, "keyframe_interval": 1, "history_frames": 0, "run_frames": 1}
        for name, least in at_least.items():
            value: int = getattr(self, name)
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if not 0 <= self.keyframe_flow_px < math.inf:
            raise ValueError(f"keyframe_flow_px must be at least 0 and finite, got {self.keyframe_flow_px}")
        if self.epoch_frames and self.epoch_frames <= self.scale_frames:
            raise ValueError(
                f"epoch_frames must be 0 or more than scale_frames = {self.scale_frames}, got {self.epoch_frames}"
            )

    @property
    def frames_per_step(self) -> int:
        """Maximum number of frames per step, limited by `window`: a step evicts only frames already in the window.

        With keyframes by motion it is 1, because each frame's motion decides about the next one.
        """
        return 1 if self.keyframe_flow_px else min(self.run_frames, self.window)

    @property
    def kept_history(self) -> int:
        """Maximum number of evicted frames whose tokens are kept, limited by how many leave the window in one epoch."""
        if not self.epoch_frames:
            return self.history_frames
        return min(self.history_frames, max(0, self.epoch_frames - self.window))


@dataclass(frozen=True, slots=True)
class CameraConfig:
    """One camera.

    Attributes:
        name: 1-64 characters of A-Z a-z 0-9 _ -.
        source: device index or path, `rtsp://`/`http://` address, file, folder, glob, or `synthetic:`. It may contain a
            password, so it is never shown unmasked.
        mode: live or lossless.
        fps: maximum number of frames per second, or None for no limit.
        loop: number of times a finite source is played; 0 is forever.
        resize: how frames are fitted to the model's image size.
        queue_frames: maximum number of frames that wait for the model.
        connect_timeout_s: seconds after which an attempt to open the source is aborted.
        stall_timeout_s: seconds without a new frame after which the source is reopened.
        retry: whether a source that fails is retried (the end of a file is not a failure).
        transport: RTSP transport.
        size: width and height requested from a V4L2 device, or None for its default.
        fourcc: pixel format requested from a V4L2 device (`MJPG` saves USB bandwidth), or None for its default.
        stream: settings of this camera's stream.
        enabled: whether the service opens the camera.
        crop: left column, top row, width and height, in pixels, of the part of each frame that is used; None to use the
            whole frame.
        outputs: the kinds of outputs that are published, all among the model's; None for all of the model's.
        view: what is known of the camera's view.
    """

    name: str
    source: str = field(repr=False)
    mode: CaptureMode = CaptureMode.LIVE
    fps: float | None = None
    loop: int = 1
    resize: ResizeMode = ResizeMode.CROP
    queue_frames: int = 2
    connect_timeout_s: float = 5.0
    stall_timeout_s: float = 10.0
    retry: bool = True
    transport: RtspTransport = "tcp"
    size: tuple[int, int] | None = None
    fourcc: str | None = None
    stream: StreamConfig = StreamConfig()
    enabled: bool = True
    crop: Crop | None = None
    outputs: tuple[OutputKind, ...] | None = None
    view: ViewConfig = field(default_factory=ViewConfig)

    @property
    def frames_per_step(self) -> int:
        """Maximum number of frames per step; above 1 only in lossless mode."""
        return self.stream.frames_per_step if self.mode is CaptureMode.LOSSLESS else 1

    @property
    def waiting_frames(self) -> int:
        """Maximum number of frames that wait for the model: `queue_frames`, or more if one step needs more."""
        return max(self.queue_frames, self.frames_per_step)


@dataclass(frozen=True, slots=True)
class CameraHeadConfig:
    """The shape of the head that estimates poses. The released checkpoints have the default values.

    Attributes:
        heads: number of attention heads; 2C is a multiple of it.
        blocks: number of blocks.
        rounds: number of times that the blocks refine the estimate.
        rope: whether queries and keys are rotated by the frame's position in time.
    """

    heads: int = 16
    blocks: int = 4
    rounds: int = 4
    rope: bool = False


@dataclass(frozen=True, slots=True)
class DenseHeadConfig:
    """The shape of the heads that predict depth or points. The released checkpoints have the default values.

    Attributes:
        layers: 0-based indices of the four layer pairs whose patch tokens the head reads, ascending.
        features: number of channels in which the layers are fused, a multiple of 8.
        channels: number of channels of each layer before that, multiples of 4.
    """

    layers: tuple[int, int, int, int] = (4, 11, 17, 23)
    features: int = 256
    channels: tuple[int, int, int, int] = (256, 512, 1024, 1024)


@dataclass(frozen=True, slots=True)
class HorizonConfig:
    """What only the network of HorizonStream has (arXiv 2605.23889). The released checkpoint has the default values.

    Attributes:
        pose_tokens: X, the number of pose tokens that a frame has for each frame of its window.
        memory_layers: 0-based indices of the global blocks that follow a block of Kimi Delta Attention, ascending.
        period: number of positions in time. They repeat after so many frames.
        scale_hidden: numbers of hidden channels of the head that estimates the metric scale.
    """

    pose_tokens: int = 32
    memory_layers: tuple[int, ...] = (4, 11, 17, 23)
    period: int = 21
    scale_hidden: tuple[int, int] = (256, 128)


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """The shape of the network (terms as in LingBot-Map's paper, arXiv 2604.14141).

    Attributes:
        channels: C, a multiple of heads.
        heads: H; channels / heads is the head dimension.
        depth: number of pairs of a frame block and a global block; with 0, the network is its patch embedding alone.
        mlp_ratio: number of hidden channels in an MLP, divided by C.
        patch_size: width and height of a patch, in pixels.
        patch_embed: the patch embedding, a name in `model.backbones.BACKBONES`.
        register_tokens: number of register tokens per frame; together with the camera token and the scale token, they
            are the special tokens.
        rope3d: whether rotary embeddings of global blocks use (time, row, column); if not, (row, column).
        mixers: how the global blocks mix tokens over time, as a repeating pattern: `attention` to a window of frames,
            or `kda`, Kimi Delta Attention over all past frames (arXiv 2510.26692). The released checkpoints are all
            `attention`.
        camera_head: the shape of the head that estimates poses.
        dense_head: the shape of the heads that predict depth or points.
        horizon: the shape of the parts that only HorizonStream has; None for LingBot-Map. HorizonStream has neither
            register tokens nor `rope3d` nor `mixers`.
    """

    channels: int = 1024
    heads: int = 16
    depth: int = 24
    mlp_ratio: float = 4.0
    patch_size: int = 14
    patch_embed: str = "dinov2_vitl14_reg"
    register_tokens: int = 4
    rope3d: bool = True
    mixers: tuple[MixerName, ...] = ("attention",)
    camera_head: CameraHeadConfig = CameraHeadConfig()
    dense_head: DenseHeadConfig = DenseHeadConfig()
    horizon: HorizonConfig | None = None

    @property
    def special_tokens(self) -> int:
        """Number of tokens before the patches of a frame: camera, registers and scale; for HorizonStream, scale."""
        return self.register_tokens + 2 if self.horizon is None else 1

    @property
    def slot_tokens(self) -> int:
        """Number of tokens that a frame has for each frame of its window, beside its own; 0 for LingBot-Map."""
        return 0 if self.horizon is None else self.horizon.pose_tokens

    def kv_caches(self, pairs: int) -> int:
        """Number of blocks with keys and values in memory, among the first `pairs` pairs of blocks.

        For LingBot-Map, these are the global blocks with attention. For HorizonStream, it is every block.
        """
        return self.global_mixers[:pairs].count("attention") if self.horizon is None else 2 * pairs

    def recurrent_states(self, pairs: int) -> int:
        """Number of `kda` blocks, each with a state of constant size, among the first `pairs` pairs of blocks."""
        if self.horizon is None:
            return self.global_mixers[:pairs].count("kda")
        return sum(layer < pairs for layer in self.horizon.memory_layers)

    @property
    def global_mixers(self) -> tuple[MixerName, ...]:
        """The mixer of each global block."""
        return tuple(self.mixers[layer % len(self.mixers)] for layer in range(self.depth))

    @property
    def memory_indices(self) -> tuple[int, ...]:
        """For each global block, its index among the blocks with the same mixer, which is also its memory's index."""
        kinds = self.global_mixers
        return tuple(kinds[:layer].count(kind) for layer, kind in enumerate(kinds))


@dataclass(frozen=True, slots=True)
class OutputConfig:
    """Which features of each frame are published.

    Attributes:
        layers: 0-based indices of the published layer pairs, ascending.
        tokens: the published groups of tokens.
        pool: for the `pooled` group, `pool` x `pool` patches are averaged into one; fewer at the right and bottom
            edges.
        dtype: number format of the published features. In float16, numbers beyond 65504 become infinite.
        map_stride: of maps of depth and points, every n-th pixel of every n-th row is published.
        min_confidence: pixels with less confidence get a depth of NaN, and points of NaN. Confidences are above 1.
        map_every: depth and points are computed for every n-th frame of an epoch.
    """

    layers: tuple[int, ...] = (4, 11, 17, 23)
    tokens: tuple[TokenGroup, ...] = (TokenGroup.CAMERA, TokenGroup.PATCH)
    pool: int = 4
    dtype: DType = "float16"
    map_stride: int = 1
    min_confidence: float = 0.0
    map_every: int = 1


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The model, and how and where it runs. `auto` is resolved when the model is loaded.

    Attributes:
        name: the preset's name, published with every record.
        network: the network's shape.
        image_width: width in pixels of the model's images, a multiple of the patch size.
        checkpoint: file with the network's weights, or None for random weights.
        backbone_checkpoint: file with DINOv2's own released weights for the patch embedding; all other weights are then
            random. None if `checkpoint` is given.
        seed: seed of random weights.
        device: `cpu` or `cuda:<n>`.
        dtype: number format of the blocks' computations.
        memory_dtype: number format of the KV cache; `auto` is `dtype`. `float8_e4m3fn` takes half the memory, rounds to
            3 bits and clamps numbers to 448. It needs fused execution.
        attention: attention backend; `auto` is the fastest available one, chosen when the model is loaded. `paged` is a
            slow reference implementation for testing the page tables that `flashinfer` reads.
        execution: how the network runs: `plain` with PyTorch modules; `fused` with fused kernels, which needs `triton`
            as the attention backend; `captured` with fused kernels in CUDA graphs; `auto` in the fastest possible way.
        flashinfer_kernels: FlashInfer's kernels; `auto` is fa3 on Hopper, else fa2.
        output: which features of each frame are published, if `outputs` has features; and the form of depth and points.
        max_batch: maximum number of frames in one step.
        max_streams: maximum number of open streams.
        step_timeout_s: seconds after which a step counts as hung and the process ends.
        outputs: the kinds of outputs that can be published, at least one. Each camera publishes some of them.
    """

    name: str = "lingbot-map"
    network: NetworkConfig = NetworkConfig()
    image_width: int = 518
    checkpoint: Path | None = None
    backbone_checkpoint: Path | None = None
    seed: int = 0
    device: str = "cpu"
    dtype: DType = "float32"
    memory_dtype: MemoryDType = "auto"
    attention: AttentionName = "auto"
    execution: ExecutionName = "auto"
    flashinfer_kernels: Literal["auto"] | FlashInferKernels = "auto"
    output: OutputConfig = OutputConfig()
    max_batch: int = 8
    max_streams: int = 64
    step_timeout_s: float = 20.0
    outputs: tuple[OutputKind, ...] = (OutputKind.FEATURES,)

    def __post_init__(self) -> None:
        if self.checkpoint is not None and self.backbone_checkpoint is not None:
            raise ValueError(
                "checkpoint already contains the patch embedding: set checkpoint or backbone_checkpoint, not both"
            )

    @property
    def random_weights(self) -> bool:
        """Whether any of the network's weights are random."""
        alone = self.backbone_checkpoint is not None and self.network.depth == 0
        return self.checkpoint is None and not alone

    @property
    def deepest_layer(self) -> int:
        """Index of the last layer pair that runs: the deepest one whose tokens an output needs."""
        deepest = self.network.depth - 1
        maps = self.network.dense_head.layers[-1] if self.network.horizon is None else deepest  # its scale is there
        needed = {
            OutputKind.FEATURES: self.output.layers[-1],
            OutputKind.POSE: deepest,
            OutputKind.DEPTH: maps,
            OutputKind.POINTS: maps,
        }
        return max(needed[kind] for kind in self.outputs)

    @property
    def running_mixers(self) -> tuple[MixerName, ...]:
        """The mixers of the global blocks that run, each of which keeps a memory."""
        return self.network.global_mixers[: self.deepest_layer + 1]

    @property
    def attention_layers(self) -> int:
        """Number of blocks that run and keep keys and values."""
        return self.network.kv_caches(self.deepest_layer + 1)

    @property
    def delta_layers(self) -> int:
        """Number of blocks that run and keep a state of constant size."""
        return self.network.recurrent_states(self.deepest_layer + 1)


@dataclass(frozen=True, slots=True)
class CurveConfig:
    """Keys for ZeroMQ CURVE, which encrypts the connections and decides who may subscribe.

    Attributes:
        server_secret_key_file: file with the server's secret key (as `zmq.auth.create_certificates` writes it).
        authorized_keys_dir: folder with the public keys of authorised clients.
    """

    server_secret_key_file: Path
    authorized_keys_dir: Path


@dataclass(frozen=True, slots=True)
class PublishConfig:
    """Where and how records are published.

    Attributes:
        endpoints: `tcp://` and `ipc://` endpoints to bind.
        buffer_mb: maximum size of the messages queued for one slow subscriber, in MiB.
        heartbeat_s: seconds after which `hello` and `status` are repeated.
        curve: CURVE keys, or None for plain sockets.
        allow_plaintext: whether an endpoint beyond this machine may be bound without CURVE.
        locate_endpoint: the endpoint that answers where a picture was taken, or None for none.
    """

    endpoints: tuple[str, ...] = ("tcp://127.0.0.1:5555",)
    buffer_mb: int = 64
    heartbeat_s: float = 5.0
    curve: CurveConfig | None = None
    allow_plaintext: bool = False
    locate_endpoint: str | None = None

    @property
    def bound(self) -> tuple[str, ...]:
        """All endpoints to bind."""
        return self.endpoints if self.locate_endpoint is None else (*self.endpoints, self.locate_endpoint)
