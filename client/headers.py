"""Message headers as typed values: the single definition behind encoding, decoding and the JSON Schema.

Unknown keys are ignored and keys may be added, so every field added later needs a default. Open sets of words (states,
flags, groups) are plain strings: a client must not fail on a word that it does not know.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

SCHEMA = 1
"""Version of the message layout. New keys do not change the version; a client refuses messages of a higher version."""

CAMERA_PATTERN = "^[A-Za-z0-9_-]{1,64}$"
TENSOR_PATTERN = "^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$"
TENSOR_NAME_LENGTH = 128

CameraName = Annotated[str, Meta(pattern=CAMERA_PATTERN)]
Instance = Annotated[str, Meta(max_length=64)]
Count = Annotated[int, Meta(ge=0)]
Pixels = tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]
Affine = tuple[tuple[float, float, float], tuple[float, float, float]]


class TensorHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describes one tensor of a record. The tensor's bytes are a separate message part.

    The parts are in the order of these headers.

    Attributes:
        name: unique within a record; `layer<N>/<group>` for tokens.
        dtype: numpy's name with byte order (`<f2`, `<f4`), or `bf16` for raw bfloat16 bits.
        shape: lengths of the axes, slowest axis first.
        nbytes: size of the part in bytes: the product of `shape` times the size of one item of `dtype`.
        layer: 0-based index of the layer pair that the tokens come from; for other outputs, None and left out.
        group: the group of tokens: camera, registers, scale, patch or pooled; for other outputs, None and left out.
    """

    name: Annotated[str, Meta(pattern=TENSOR_PATTERN, max_length=TENSOR_NAME_LENGTH)]
    dtype: Annotated[str, Meta(description="numpy's dtype string with byte order, or bf16", max_length=8)]
    shape: tuple[Annotated[int, Meta(ge=0)], ...]
    nbytes: Count
    layer: int | None = None
    group: Annotated[str, Meta(description="camera | registers | scale | patch | pooled")] | None = None


class ModelHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The model that made the features.

    Attributes:
        name: the preset's name.
        weights: `sha256:<hex>` of the weights file, `random:<seed>`, or both joined by a plus sign.
        mixers: how each layer pair's global block mixes tokens over time: `attention` or `kda`, one word per layer
            pair.
    """

    name: str
    weights: str
    mixers: tuple[str, ...] = ()


class LatencyHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Latency per stage in microseconds.

    Attributes:
        queue: from capture to the start of the model's step.
        preprocess: resizing and normalization.
        model: the model's step.
        publish: from the end of the model's step to the send.
    """

    queue: int = 0
    preprocess: int = 0
    model: int = 0
    publish: int = 0


class ContextHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The frames that a frame attended to in its stream's memory, counted by how much of them was left.

    Attributes:
        frames: number of frames whose tokens were all attended to, including the frame itself.
        history_frames: number of older frames of which only the special tokens were left to attend to.
        forgotten_frames: number of keyframes of this epoch that were fully evicted.
    """

    frames: Count
    history_frames: Count = 0
    forgotten_frames: Count = 0


class ServiceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and gauges of the service as a whole.

    Attributes:
        uptime_s: seconds since the publisher opened.
        loop_lag_ms: event loop delay in the last interval, in milliseconds.
        peers: number of open connections (a connection that never finishes its handshake counts for a few seconds).
        sent_messages: number of messages published, of all kinds.
        sent_bytes: total size of those messages in bytes, counted once regardless of the number of subscribers.
        handshake_failures: number of connections that failed the handshake, because the peer does not speak ZeroMQ or
            its CURVE key is wrong or missing.
        reloads: number of attempts to reload the config.
        reload_failures: number of attempts that changed nothing because the config was invalid or unreadable.
    """

    uptime_s: float = 0.0
    loop_lag_ms: float = 0.0
    peers: int = 0
    sent_messages: int = 0
    sent_bytes: int = 0
    handshake_failures: int = 0
    reloads: int = 0
    reload_failures: int = 0


class CameraHeader(msgspec.Struct, frozen=True, kw_only=True):
    """A camera as listed in `hello`.

    Attributes:
        name: the camera's configured name.
        mode: live or lossless.
        state: the camera's state: connecting, running, stalled, backoff, ended or failed; empty if unknown.
    """

    name: CameraName
    mode: Annotated[str, Meta(description="live | lossless")] = "live"
    state: str = ""


class AlignmentHeader(msgspec.Struct, frozen=True, kw_only=True):
    """How an epoch's frame of reference maps to the trajectory's: x_world = scale R x_epoch + translation.

    Attributes:
        scale: length of the epoch's unit, in the trajectory's unit.
        rotation: R as a unit quaternion x y z w.
        translation: x y z, in the trajectory's unit.
        residual: median distance between the camera positions of the frames that this epoch shares with the previous
            one, after the alignment, as a fraction of their median depth. None if nothing was aligned.
        rotation_residual_degrees: median angle between these frames' rotations, after the alignment.
        reason: why the alignment should not be trusted; None if it is good.
    """

    scale: float = 1.0
    rotation: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 1.0)
    translation: tuple[float, float, float] = (0.0, 0.0, 0.0)
    residual: float | None = None
    rotation_residual_degrees: float | None = None
    reason: str | None = None


class GeometryHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a record's poses, depths and points mean.

    Attributes:
        unit: name of the unit of length: `metre`, or `stream` for the stream's own, constant but unknown.
        world_epoch: the epoch whose frame of reference is the trajectory's. A new number means a new trajectory.
        map_stride: pixel (column, row) of a map is pixel (map_stride column, map_stride row) of the model's image.
        alignment: maps this record's epoch to the trajectory.
    """

    unit: str = "stream"
    world_epoch: Count = 0
    map_stride: Count = 1
    alignment: AlignmentHeader = AlignmentHeader()


class RecordFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a features header other than its tensors.

    Attributes:
        schema: version of the message layout.
        camera: the camera's name, as in the topic.
        instance: random identifier of this run of the service.
        stream_epoch: sequence number of the connection to the source; increases at each reconnect.
        seq: sequence number of the record within the stream epoch, from 0, without gaps.
        source_seq: sequence number of the captured frame within the stream epoch, from 0; dropped frames count too.
        dropped_total: number of this camera's frames dropped since the service started.
        failed_total: number of this camera's frames that yielded no features since the service started.
        capture_unix_ns: wall-clock time of capture, nanoseconds since 1970.
        capture_monotonic_ns: `CLOCK_MONOTONIC` at capture on the service's machine, nanoseconds.
        publish_unix_ns: wall-clock time of the send, nanoseconds since 1970.
        pts_ns: the container's presentation time in nanoseconds, or None.
        epoch: sequence number of the stream's memory in the model; increases each time the memory is reset.
        epoch_frame: sequence number of the frame within that memory, from 0; frames from which the memory was
            rebuilt count too.
        keyframe: whether later frames attend to this one.
        context: what this frame attended to; None if no block attends across frames.
        flags: any of reset, nan, size_changed, warmup, random_weights; more may be added.
        source_size: width and height of the frame as captured, pixels.
        model_size: width and height of the model's input image, pixels.
        grid: number of rows and of columns of patches.
        to_source: 2x3 affine matrix that maps a model pixel (x, y) to a source pixel.
        model: the model that made the features.
        latency_us: latency per stage.
        geometry: what poses, depths and points mean; None if the record has none of them.
    """

    schema: int = SCHEMA
    camera: CameraName
    instance: Instance
    stream_epoch: Count
    seq: Count
    source_seq: Count
    dropped_total: Count = 0
    failed_total: Count = 0
    capture_unix_ns: int
    capture_monotonic_ns: int
    publish_unix_ns: int
    pts_ns: int | None = None
    epoch: Count
    epoch_frame: Count
    keyframe: bool
    context: ContextHeader | None = None
    flags: tuple[str, ...] = ()
    source_size: Pixels
    model_size: Pixels
    grid: Pixels
    to_source: Affine
    model: ModelHeader
    latency_us: LatencyHeader = LatencyHeader()
    geometry: GeometryHeader | None = None


class FeaturesHeader(RecordFields, frozen=True, kw_only=True):
    """Header of a `features` message: the model's features of one frame.

    Attributes:
        tensors: description of each tensor, in the order of the message's parts.
    """

    tensors: tuple[TensorHeader, ...]


class StatusHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Header of a `status` message, sent at each change of a camera's state and every few seconds.

    Attributes:
        schema: version of the message layout.
        camera: the camera's name.
        instance: random identifier of this run of the service; the publisher fills it in.
        publish_unix_ns: wall-clock time of the send, nanoseconds since 1970; the publisher fills it in.
        state: connecting, running, stalled, backoff, ended or failed.
        reason: the cause of backoff, ended or failed; never contains a secret.
        attempt: number of consecutive failed attempts to open the source.
        next_try_s: seconds until the next attempt, in the state backoff.
        stream_epoch: sequence number of the connection to the source.
        fps: measured capture rate in frames per second, or None while unknown.
        published_fps: records published per second, or None while unknown.
        overload: a sentence with both rates if the model is slower than the source, otherwise None.
        source_size: width and height of the last frame, pixels.
        last_frame_age_s: seconds since the last frame was captured.
        captured_total: number of frames captured since the service started.
        published_total: number of frames whose features were published.
        dropped_total: number of frames dropped.
        failed_total: number of frames that yielded no features.
        in_flight: number of frames still being processed: captured = published + dropped + failed + in flight.
        nan_total: number of frames published with non-finite values (flag `nan`); after each of them, the
            stream's memory was reset.
        decode_errors_total: number of damaged images or packets reported by the decoder.
        service: counters and gauges of the service as a whole; the publisher fills them in.
    """

    schema: int = SCHEMA
    camera: CameraName
    instance: Instance = ""
    publish_unix_ns: int = 0
    state: Annotated[str, Meta(description="connecting | running | stalled | backoff | ended | failed")]
    reason: str | None = None
    attempt: int = 0
    next_try_s: float | None = None
    stream_epoch: int | None = None
    fps: float | None = None
    published_fps: float | None = None
    overload: str | None = None
    source_size: Pixels | None = None
    last_frame_age_s: float | None = None
    captured_total: Count = 0
    published_total: Count = 0
    dropped_total: Count = 0
    failed_total: Count = 0
    in_flight: Count = 0
    nan_total: Count = 0
    decode_errors_total: Count = 0
    service: ServiceHeader = ServiceHeader()


class EndHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Header of an `end` message, sent once when a camera has finished, after its last record.

    Attributes:
        schema: version of the message layout.
        camera: the camera's name.
        instance: random identifier of this run of the service; the publisher fills it in.
        publish_unix_ns: wall-clock time of the send, nanoseconds since 1970; the publisher fills it in.
        reason: `finished`, `stopped`, or the failure.
        stream_epoch: the last stream epoch, or None if the source never connected.
        next_seq: the `seq` that the next record would have had; shows whether the last records arrived.
        captured_total: number of frames captured since the service started.
        published_total: number of frames whose features were published.
        dropped_total: number of frames dropped.
        failed_total: number of frames that yielded no features.
        expected_total: number of frames that the source announced for one pass, or None if it announced no number.
    """

    schema: int = SCHEMA
    camera: CameraName
    instance: Instance = ""
    publish_unix_ns: int = 0
    reason: str
    stream_epoch: int | None = None
    next_seq: Count | None = None
    captured_total: Count = 0
    published_total: Count = 0
    dropped_total: Count = 0
    failed_total: Count = 0
    expected_total: int | None = None


class HelloHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Header of a `hello` message, which holds what a late subscriber needs to know first.

    Attributes:
        schema: version of the message layout.
        instance: random identifier of this run of the service; the publisher fills it in.
        publish_unix_ns: wall-clock time of the send, nanoseconds since 1970; the publisher fills it in.
        version: version of retinad.
        versions: versions of libraries, by library name.
        endpoints: addresses at which the service publishes; the publisher fills them in.
        heartbeat_s: interval at which `hello` is repeated, in seconds; the publisher fills it in.
        models: the models in use.
        cameras: all configured cameras, in any state.
        layers: 0-based indices of the published layer pairs.
        tokens: the published groups of tokens.
        dtype: number format of the tensors: numpy's name with byte order, or `bf16`.
        service: counters and gauges of the service as a whole; the publisher fills them in.
    """

    schema: int = SCHEMA
    instance: Instance = ""
    publish_unix_ns: int = 0
    version: str = ""
    versions: dict[str, str] = {}
    endpoints: tuple[str, ...] = ()
    heartbeat_s: float = 0.0
    models: tuple[ModelHeader, ...] = ()
    cameras: tuple[CameraHeader, ...] = ()
    layers: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()
    dtype: str = ""
    service: ServiceHeader = ServiceHeader()
