"""Valid message headers, and variants of them with keys replaced."""

import msgspec
import numpy as np

from retinad.client.wire import ITEM_BYTES, SCHEMA, FeaturesHeader, ModelHeader, TensorHeader


def tensor(dtype: str = "<f2", shape: tuple[int, ...] = (2, 3), name: str = "layer0/patch") -> TensorHeader:
    nbytes = int(np.prod(shape, dtype=np.int64)) * ITEM_BYTES.get(dtype, 1)
    return TensorHeader(name=name, dtype=dtype, shape=shape, nbytes=nbytes, layer=0, group="patch")


def header(*tensors: TensorHeader, camera: str = "cam1", seq: int = 0, schema: int = SCHEMA) -> FeaturesHeader:
    return FeaturesHeader(
        schema=schema,
        camera=camera,
        instance="0123",
        stream_epoch=0,
        seq=seq,
        source_seq=seq,
        capture_unix_ns=1,
        capture_monotonic_ns=2,
        publish_unix_ns=3,
        epoch=0,
        epoch_frame=seq,
        keyframe=True,
        flags=("reset", "warmup"),
        source_size=(640, 480),
        model_size=(518, 392),
        grid=(28, 37),
        to_source=((1.0, 0.0, 0.0), (0.0, 1.0, 0.5)),
        model=ModelHeader(name="tiny", weights="random:0", mixers=("attention", "kda")),
        tensors=tensors,
    )


def edited(**changes: object) -> bytes:
    """A good features header with keys replaced, as msgpack."""
    plain = msgspec.to_builtins(header(tensor()))
    return msgspec.msgpack.encode(plain | changes)


def edited_tensor(**changes: object) -> bytes:
    return edited(tensors=[msgspec.to_builtins(tensor()) | changes])
