"""What the pipeline's parts are told, as frozen values. The daemon checks the config file and fills them in."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from .frames import TokenGroup

DType = Literal["float16", "bfloat16", "float32"]
MemoryDType = Literal["auto", "float8_e4m3fn"]
Attention = Literal["auto", "dense", "paged", "flashinfer", "triton"]
Execution = Literal["auto", "plain", "fused", "captured"]
FlashInferKernels = Literal["fa2", "fa3"]
MixerName = Literal["attention", "kda"]
Transport = Literal["tcp", "udp"]


class CaptureMode(StrEnum):
    """What happens when frames come faster than the model takes them."""

    LIVE = "live"
    """The newest frames win; older ones are dropped and counted."""
    LOSSLESS = "lossless"
    """The source waits; nothing is dropped."""


class ResizeMode(StrEnum):
    """How a picture is fitted to the model's size."""

    CROP = "crop"
    """Width to the model's width; what is then too high loses rows at top and bottom."""
    PAD = "pad"
    """The larger side to the model's width, the rest white."""


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Which tokens stay when their frame leaves the window; by default, what the released checkpoints expect.

    Attributes:
        cross_frame_special: whether an evicted frame leaves its special tokens behind.
        camera_only: whether it leaves its camera token only.
        include_scale_frames: whether the scale frames stay for ever; if not, they age out like any other frame.
    """

    cross_frame_special: bool = True
    camera_only: bool = False
    include_scale_frames: bool = True


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """What a stream remembers.

    Attributes:
        scale_frames: the stream's first frames, attended to for ever; at least 1. Their features come together, when
            the last of them is in.
        window: most recent keyframes whose tokens are all attended to; at least 1.
        keyframe_interval: after the scale frames, every n-th frame enters the memory; the others only read it.
        history_frames: evicted frames whose special tokens are attended to, the most recent ones; 0 for none. It bounds
            a stream's memory and cost.
        retention: which tokens stay when their frame leaves the window.
        epoch_frames: after so many frames in the memory it is made anew from the stream's last `scale_frames` frames;
            0 for never. More than `scale_frames`.
        run_frames: frames of the stream that one step takes at most, where more than one waits. Their numbers are those
            of one by one; the storage has room for the additional frames. No more than `window` are taken.
        carry_state: whether the state of `kda` blocks lives on when the memory is made anew.
    """

    scale_frames: int = 8
    window: int = 64
    keyframe_interval: int = 1
    history_frames: int = 1024
    retention: RetentionConfig = RetentionConfig()
    epoch_frames: int = 0
    run_frames: int = 1
    carry_state: bool = False

    def __post_init__(self) -> None:
        at_least = {"scale_frames": 1, "window": 1, "keyframe_interval": 1, "history_frames": 0, "run_frames": 1}
        for name, least in at_least.items():
            value: int = getattr(self, name)
            if value < least:
                raise ValueError(f"{name} is at least {least}, got {value}")
        if self.epoch_frames and self.epoch_frames <= self.scale_frames:
            raise ValueError(
                f"epoch_frames is 0 or more than scale_frames = {self.scale_frames}, got {self.epoch_frames}"
            )

    @property
    def frames_per_step(self) -> int:
        """Frames that one step takes at most: frames that leave the window in a step must be there before it."""
        return min(self.run_frames, self.window)

    @property
    def kept_history(self) -> int:
        """Evicted frames that leave tokens behind, at most: in an epoch no more than these leave the window."""
        if not self.epoch_frames:
            return self.history_frames
        return min(self.history_frames, max(0, self.epoch_frames - self.window))


@dataclass(frozen=True, slots=True)
class CameraConfig:
    """One camera.

    Attributes:
        name: 1-64 characters of A-Z a-z 0-9 _ -.
        source: device index or path, `rtsp://`/`http://` address, file, folder, glob, or `synthetic:`. May hold a
            password: never shown as it is.
        mode: live or lossless.
        fps: frames a second at most, or None for as many as come.
        loop: times a finite source is played; 0 is for ever.
        resize: how the picture is fitted to the model's size.
        queue_frames: frames that wait for the model at most.
        connect_timeout_s: seconds until an attempt to open the source is given up.
        stall_timeout_s: seconds without a new frame until the source is opened again.
        retry: whether a source that fails is tried again (a file that ends is not a failure).
        transport: RTSP transport.
        size: width and height asked of a V4L2 device, or None for what it gives.
        fourcc: pixel format asked of a V4L2 device (`MJPG` saves USB bandwidth), or None for what it gives.
        stream: what this camera's stream remembers.
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
    transport: Transport = "tcp"
    size: tuple[int, int] | None = None
    fourcc: str | None = None
    stream: StreamConfig = StreamConfig()

    @property
    def frames_per_step(self) -> int:
        """Frames that one step takes at most: several only where none may be dropped."""
        return self.stream.frames_per_step if self.mode is CaptureMode.LOSSLESS else 1

    @property
    def waiting_frames(self) -> int:
        """Frames that wait for the model at most: enough for a run."""
        return max(self.queue_frames, self.frames_per_step)


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """The shape of the aggregator (spelt as in the paper, arXiv 2604.14141).

    Attributes:
        channels: C, a multiple of heads.
        heads: H; channels / heads is the head dimension.
        depth: number of pairs of a frame block and a global block; with 0 the network is its patch embedding alone.
        mlp_ratio: hidden channels of an MLP over C.
        patch_size: pixels along a side of a patch.
        patch_embed: the patch embedding, a name in `model.backbones.BACKBONES`.
        register_tokens: register tokens a frame; with the camera and the scale token they are the special tokens.
        rope3d: whether global blocks rotate by (time, row, column); if not, by (row, column).
        mixers: how the global blocks mix tokens over time, a pattern that repeats: `attention` to a window of frames,
            or `kda`, Kimi Delta Attention over all that was (arXiv 2510.26692). The released checkpoints are all
            `attention`.
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

    @property
    def global_mixers(self) -> tuple[MixerName, ...]:
        """The mixer of each global block."""
        return tuple(self.mixers[layer % len(self.mixers)] for layer in range(self.depth))

    @property
    def memory_indices(self) -> tuple[int, ...]:
        """The number of each global block among those with its mixer: where its memory stands."""
        kinds = self.global_mixers
        return tuple(kinds[:layer].count(kind) for layer, kind in enumerate(kinds))


@dataclass(frozen=True, slots=True)
class OutputConfig:
    """Which features are published.

    Attributes:
        layers: 0-based indices of layer pairs, ascending.
        tokens: groups of tokens.
        pool: rows and columns of patches averaged into one for the `pooled` group; fewer at the right and bottom edges.
        dtype: number format of the published tensors. A number beyond 65504 becomes infinite in float16.
    """

    layers: tuple[int, ...] = (4, 11, 17, 23)
    tokens: tuple[TokenGroup, ...] = (TokenGroup.CAMERA, TokenGroup.PATCH)
    pool: int = 4
    dtype: DType = "float16"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The model and where it runs; `attention` alone may still be `auto`.

    Attributes:
        name: the preset's name, published with every record.
        network: the shape.
        image_width: width in pixels that pictures are fitted to, a multiple of the patch size.
        checkpoint: the network's weights, or None for random ones.
        backbone_checkpoint: DINOv2's own released weights for the patch embedding; what else the network has is random.
            None where `checkpoint` is given.
        seed: seed of random weights.
        device: `cpu` or `cuda:<n>`.
        dtype: number format that blocks compute in.
        memory_dtype: number format of the keys and values that streams remember; `auto` is `dtype`. `float8_e4m3fn`
            takes half the memory and rounds to 3 bits; numbers beyond 448 become that. It needs fused execution.
        attention: attention backend; `auto` is the fastest that can run, chosen when the model is loaded. `paged` is
            the slow reference of the page tables that `flashinfer` reads.
        execution: how the network runs: `plain` as it is written, `fused` by fused kernels, which needs `triton` as the
            attention backend, `captured` with steps as CUDA graphs besides; `auto` is the fastest that can run.
        flashinfer_kernels: FlashInfer's kernels; `auto` is fa3 on Hopper, else fa2.
        output: which features are published.
        max_batch: frames in one step at most.
        max_streams: streams open at once at most.
        step_timeout_s: seconds that a step may take before it counts as hung, and the process ends.
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
    attention: Attention = "auto"
    execution: Execution = "auto"
    flashinfer_kernels: Literal["auto"] | FlashInferKernels = "auto"
    output: OutputConfig = OutputConfig()
    max_batch: int = 8
    max_streams: int = 64
    step_timeout_s: float = 20.0

    def __post_init__(self) -> None:
        if self.checkpoint is not None and self.backbone_checkpoint is not None:
            raise ValueError("checkpoint holds the patch embedding too: give it or backbone_checkpoint, not both")

    @property
    def random_weights(self) -> bool:
        """Whether any of the network's weights are random."""
        alone = self.backbone_checkpoint is not None and self.network.depth == 0
        return self.checkpoint is None and not alone

    @property
    def running_mixers(self) -> tuple[MixerName, ...]:
        """The mixers of the global blocks that run, each of which keeps a memory."""
        return self.network.global_mixers[: self.output.layers[-1] + 1]

    @property
    def attention_layers(self) -> int:
        """Global blocks that keep keys and values."""
        return self.running_mixers.count("attention")

    @property
    def delta_layers(self) -> int:
        """Global blocks that keep a state of constant size."""
        return self.running_mixers.count("kda")


@dataclass(frozen=True, slots=True)
class CurveConfig:
    """ZeroMQ CURVE: who may subscribe.

    Attributes:
        server_secret_key_file: file with the server's secret key (as `zmq.auth.create_certificates` writes it).
        authorized_keys_dir: folder of the public keys of clients that get in.
    """

    server_secret_key_file: Path
    authorized_keys_dir: Path


@dataclass(frozen=True, slots=True)
class PublishConfig:
    """Where and how records are published.

    Attributes:
        endpoints: `tcp://` and `ipc://` endpoints to bind.
        buffer_mb: MiB of messages kept at most for one slow subscriber.
        heartbeat_s: seconds between `hello` and `status` repeats.
        curve: CURVE keys, or None for plain sockets.
        allow_plaintext: whether an endpoint beyond this machine may be bound without CURVE.
    """

    endpoints: tuple[str, ...] = ("tcp://127.0.0.1:5555",)
    buffer_mb: int = 64
    heartbeat_s: float = 5.0
    curve: CurveConfig | None = None
    allow_plaintext: bool = False
