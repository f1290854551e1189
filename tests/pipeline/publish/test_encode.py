"""Every field of a record's header comes from the features: none is swapped or left at its default."""

import time
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from retinad.client.wire import (
    AlignmentHeader,
    ContextHeader,
    FeaturesHeader,
    GeometryHeader,
    LatencyHeader,
    ModelHeader,
    TensorHeader,
)
from retinad.pipeline.frames import (
    Alignment,
    Context,
    CropPlace,
    Features,
    Flag,
    FrameStamp,
    Geometry,
    Output,
    OutputKind,
    OutputTensor,
    TokenGroup,
    TokenOutput,
)
from retinad.pipeline.publish.encode import features_header, tensor_bytes, tensor_header

MODEL = ModelHeader(name="tiny", weights="random:0", mixers=("softmax",))
FEATURES = Features(
    stamp=FrameStamp("cam1", 1, 20, 300, 400, 500, (640, 480)),
    epoch=6,
    epoch_frame=70,
    keyframe=False,
    flags=frozenset({Flag.WARMUP, Flag.NAN}),
    model_size=(518, 392),
    grid=(28, 37),
    to_source=((1.5, 0.0, 0.25), (0.0, 1.25, -0.5)),
    tensors=(
        OutputTensor(TokenOutput.of(3, TokenGroup.POOLED, (2, 3, 4), "float16"), np.zeros((2, 3, 4), np.float16)),
        OutputTensor(TokenOutput.of(5, TokenGroup.CAMERA, (1, 8), "bfloat16"), np.zeros((1, 8), np.uint16)),
    ),
    latency_us={"queue": 10, "preprocess": 20, "model": 30},
    context=Context(frames=72, history_frames=8, forgotten_frames=3),
    keyframe_flow_px=12.5,
    known_intrinsics=(400.0, 401.0, 320.0, 240.0),
    geometry=Geometry(
        unit_reason="it is measured later",
        alignment=Alignment(
            scale=2.0,
            rotation=(0.5, -0.5, 0.5, 0.5),
            translation=(1.0, 2.0, 3.0),
            residual=0.25,
            rotation_residual_degrees=4.0,
            reason="depths differ",
        ),
        unit="metre",
        map_stride=5,
        world_epoch=4,
    ),
)


def test_a_header_describes_its_features() -> None:
    before_ns, done_ns = time.time_ns(), time.monotonic_ns()
    header = features_header(
        FEATURES, instance="a1", model=MODEL, seq=2, dropped_total=3, failed_total=4, model_done_ns=done_ns - 5_000_000
    )
    assert before_ns <= header.publish_unix_ns <= time.time_ns()
    assert 5_000 <= header.latency_us.publish < 1_000_000
    expected = FeaturesHeader(
        camera="cam1",
        instance="a1",
        stream_epoch=1,
        seq=2,
        source_seq=20,
        dropped_total=3,
        failed_total=4,
        capture_unix_ns=300,
        capture_monotonic_ns=400,
        publish_unix_ns=header.publish_unix_ns,
        pts_ns=500,
        epoch=6,
        epoch_frame=70,
        keyframe=False,
        context=ContextHeader(frames=72, history_frames=8, forgotten_frames=3),
        flags=("nan", "warmup"),
        source_size=(640, 480),
        model_size=(518, 392),
        grid=(28, 37),
        to_source=((1.5, 0.0, 0.25), (0.0, 1.25, -0.5)),
        model=MODEL,
        latency_us=LatencyHeader(queue=10, preprocess=20, model=30, publish=header.latency_us.publish),
        geometry=GeometryHeader(
            unit="metre",
            world_epoch=4,
            map_stride=5,
            alignment=AlignmentHeader(
                scale=2.0,
                rotation=(0.5, -0.5, 0.5, 0.5),
                translation=(1.0, 2.0, 3.0),
                residual=0.25,
                rotation_residual_degrees=4.0,
                reason="depths differ",
            ),
            keyframe_flow_px=12.5,
            known_intrinsics=(400.0, 401.0, 320.0, 240.0),
            unit_reason="it is measured later",
        ),
        tensors=(
            TensorHeader(name="layer3/pooled", dtype="<f2", shape=(2, 3, 4), nbytes=48, layer=3, group="pooled"),
            TensorHeader(name="layer5/camera", dtype="bf16", shape=(1, 8), nbytes=16, layer=5, group="camera"),
        ),
    )
    assert msgspec.to_builtins(header) == msgspec.to_builtins(expected)


def test_the_source_size_of_a_cropped_frame_is_that_of_the_whole_one() -> None:
    cropped = replace(FEATURES, stamp=replace(FEATURES.stamp, crop=CropPlace(8, 16, (1920, 1080))))
    header = features_header(
        cropped, instance="a1", model=MODEL, seq=2, dropped_total=0, failed_total=0, model_done_ns=time.monotonic_ns()
    )
    assert header.source_size == (1920, 1080)
    assert header.crop == (8, 16, 640, 480)


def test_no_field_of_the_geometry_is_left_at_its_default() -> None:
    """Or a field that is never filled in would pass the comparison above."""
    header = features_header(
        FEATURES, instance="a1", model=MODEL, seq=2, dropped_total=0, failed_total=0, model_done_ns=time.monotonic_ns()
    )
    given = msgspec.to_builtins(header.geometry)
    usual = msgspec.to_builtins(GeometryHeader())
    assert given.keys() == usual.keys()
    assert given["alignment"].keys() == usual["alignment"].keys()
    assert [key for key in usual if given[key] == usual[key]] == []
    assert [key for key in usual["alignment"] if given["alignment"][key] == usual["alignment"][key]] == []


def test_a_tensors_bytes_are_its_own_memory() -> None:
    data = np.arange(6, dtype=np.float16).reshape(2, 3)
    view = tensor_bytes(OutputTensor(TokenOutput.of(0, TokenGroup.PATCH, (2, 3), "float16"), data))
    assert bytes(view) == data.tobytes()
    assert np.shares_memory(np.frombuffer(view, np.float16), data)
    with pytest.raises(ValueError, match="layer0/patch is not C-contiguous"):
        tensor_bytes(OutputTensor(TokenOutput.of(0, TokenGroup.PATCH, (3, 2), "float16"), data.T))


def test_a_header_of_tokens_has_the_bytes_that_it_always_had() -> None:
    """Clients in other languages index by these keys, and some by their order."""
    tensor = OutputTensor(TokenOutput.of(3, TokenGroup.PATCH, (2, 3), "float16"), np.zeros((2, 3), np.float16))
    expected = {"name": "layer3/patch", "dtype": "<f2", "shape": [2, 3], "nbytes": 12, "layer": 3, "group": "patch"}
    assert msgspec.msgpack.encode(tensor_header(tensor)) == msgspec.msgpack.encode(expected)


def test_an_output_that_is_not_tokens_has_neither_layer_nor_group() -> None:
    output = Output("pose/encoding", (9,), "float32", OutputKind.FEATURES)
    header = tensor_header(OutputTensor(output, np.zeros(9, np.float32)))
    expected = {"name": "pose/encoding", "dtype": "<f4", "shape": [9], "nbytes": 36}
    assert msgspec.msgpack.encode(header) == msgspec.msgpack.encode(expected)
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(header), type=TensorHeader)
    assert (decoded.layer, decoded.group) == (None, None)


def test_a_tensor_has_the_form_that_its_output_declares() -> None:
    output = TokenOutput.of(3, TokenGroup.PATCH, (2, 3), "float16")
    for wrong in (np.zeros((3, 2), np.float16), np.zeros((2, 3), np.float32)):
        with pytest.raises(ValueError, match="output layer3/patch must be float16"):
            OutputTensor(output, wrong)
