"""Encodes features as the header and tensor bytes of a message, without copying a tensor."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

import numpy as np

from retinad.client.wire import (
    AlignmentHeader,
    ContextHeader,
    FeaturesHeader,
    GeometryHeader,
    LatencyHeader,
    ModelHeader,
    TensorHeader,
)

from ..frames import Context, DType, Features, OutputTensor, TokenOutput

WIRE_DTYPES: Final[Mapping[DType, str]] = {"float16": "<f2", "float32": "<f4", "bfloat16": "bf16"}
"""The name of each number format in a message: numpy's name with byte order, or `bf16` for raw bfloat16 bits."""


def features_header(
    features: Features,
    *,
    instance: str,
    model: ModelHeader,
    seq: int,
    dropped_total: int,
    failed_total: int,
    model_done_ns: int,
) -> FeaturesHeader:
    """Make the header of the message for these features, stamped with the current time.

    Args:
        features: features to publish.
        instance: identifier of this run of the service.
        model: description of the model.
        seq: the record's sequence number within the stream epoch.
        dropped_total: number of the camera's frames dropped so far.
        failed_total: number of the camera's frames that yielded no features so far.
        model_done_ns: `time.monotonic_ns()` at the end of the model's step.
    """
    stamp = features.stamp
    stages = features.latency_us
    return FeaturesHeader(
        camera=stamp.camera,
        instance=instance,
        stream_epoch=stamp.stream_epoch,
        seq=seq,
        source_seq=stamp.source_seq,
        dropped_total=dropped_total,
        failed_total=failed_total,
        capture_unix_ns=stamp.capture_unix_ns,
        capture_monotonic_ns=stamp.capture_monotonic_ns,
        publish_unix_ns=time.time_ns(),
        pts_ns=stamp.pts_ns,
        epoch=features.epoch,
        epoch_frame=features.epoch_frame,
        keyframe=features.keyframe,
        context=_context_header(features.context),
        flags=tuple(sorted(features.flags)),
        source_size=stamp.captured_size,
        model_size=features.model_size,
        grid=features.grid,
        to_source=features.to_source,
        model=model,
        latency_us=LatencyHeader(
            queue=stages.get("queue", 0),
            preprocess=stages.get("preprocess", 0),
            model=stages.get("model", 0),
            publish=max(0, time.monotonic_ns() - model_done_ns) // 1000,
        ),
        geometry=_geometry_header(features),
        crop=None if stamp.crop is None else (stamp.crop.left, stamp.crop.top, *stamp.source_size),
        tensors=tuple(tensor_header(tensor) for tensor in features.tensors),
    )


def _geometry_header(features: Features) -> GeometryHeader | None:
    geometry = features.geometry
    if geometry is None:
        return None
    return GeometryHeader(
        unit=geometry.unit,
        world_epoch=geometry.world_epoch,
        map_stride=geometry.map_stride,
        alignment=AlignmentHeader(**asdict(geometry.alignment)),
        keyframe_flow_px=features.keyframe_flow_px,
        known_intrinsics=features.known_intrinsics,
        unit_reason=geometry.unit_reason,
    )


def _context_header(context: Context | None) -> ContextHeader | None:
    if context is None:
        return None
    return ContextHeader(
        frames=context.frames,
        history_frames=context.history_frames,
        forgotten_frames=context.forgotten_frames,
    )


def tensor_header(tensor: OutputTensor) -> TensorHeader:
    """Describe a tensor for the message header."""
    output = tensor.output
    tokens = output if isinstance(output, TokenOutput) else None
    return TensorHeader(
        name=output.name,
        dtype=WIRE_DTYPES[output.dtype],
        shape=output.shape,
        nbytes=output.nbytes,
        layer=None if tokens is None else tokens.layer,
        group=None if tokens is None else tokens.group,
    )


def tensor_bytes(tensor: OutputTensor) -> memoryview:
    """A view of a tensor's bytes.

    Raises:
        ValueError: the tensor is not C-contiguous.
    """
    if not tensor.data.flags.c_contiguous:
        raise ValueError(f"tensor {tensor.name} is not C-contiguous")
    return tensor.data.reshape(-1).view(np.uint8).data
