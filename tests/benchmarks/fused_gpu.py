"""Times the fused kernels of a transformer block on a GPU, against memory bandwidth and against PyTorch.

`python tests/benchmarks/fused_gpu.py` prints a table. A call is timed inside a CUDA graph, as the service runs it: a
graph of many calls over inputs that together exceed the GPU's cache is replayed, and the median of the replays divided.
Bytes are the least that must move: every input read once, every output written once.
"""

# torch.cuda.Event and Stream have no types.
# mypy: disable-error-code="no-untyped-call"

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from retinad.kernels.fused import (
    Append,
    HeadNorm,
    RotaryTables,
    add_norm,
    copy_slots,
    image_tables,
    preprocess,
    qk_norm_rope,
)
from retinad.pipeline.config import ResizeMode
from retinad.pipeline.engine.preprocess import resize_geometry
from retinad.pipeline.model.aggregator import MEAN, STD
from retinad.pipeline.model.rope import Rotation, rotation_2d, rotation_3d, spatial_part

DEVICE = torch.device("cuda")
MEMORY_BYTES_PER_S = 4.2e12
CACHE_BYTES = 60e6
CALLS, REPLAYS = 24, 15
GRID, SPECIAL = (37, 27), 6
SLOTS = 100_000
Call = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One kernel at one size. `fused` and `torch` each return a call with its own inputs."""

    name: str
    bytes: int
    fused: Callable[[], Call]
    torch: Callable[[], Call]


def microseconds(make: Callable[[], Call], size: int) -> float:
    """Median time of a call on the device."""
    calls = [make() for _ in range(min(CALLS, 2 + int(2 * CACHE_BYTES / size)))]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    graph, count = torch.cuda.CUDAGraph(), max(CALLS, len(calls))
    with torch.cuda.graph(graph):
        for number in range(count):
            calls[number % len(calls)]()
    times: list[float] = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / count)
    return statistics.median(times)


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=dtype)


def residual_and_norm(F: int, C: int) -> Row:
    """The residual sum and the layer norm after it."""
    N = F * (GRID[0] * GRID[1] + SPECIAL)
    parameters = [normal(C, dtype=torch.float32) for _ in range(3)]
    gamma, weight, bias = parameters

    def fused() -> Call:
        x, branch = normal(N, C, dtype=torch.float32), normal(N, C)
        out = torch.empty_like(branch)
        return lambda: add_norm(x, branch, gamma, weight, bias, out, 1e-5)

    def by_torch() -> Call:
        x, branch = normal(N, C, dtype=torch.float32), normal(N, C)

        def call() -> Tensor:
            summed = torch.addcmul(x, branch.float(), gamma)
            return functional.layer_norm(summed, (C,), weight, bias).to(branch.dtype)

        return call

    return Row(f"add_norm [{N}, {C}]", 12 * N * C, fused, by_torch)


def tables_of(rotation: Rotation) -> RotaryTables:
    cos, sin = (part.reshape(*part.shape[:2], -1).contiguous() for part in (rotation.cos, rotation.sin))
    return RotaryTables(cos, sin, rotation.pairs)


def rotated(packed: Tensor, norm: HeadNorm, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as the model computes them."""
    query, key, value = packed.unbind(2)
    query = functional.layer_norm(query.float(), norm.query_weight.shape, norm.query_weight, norm.query_bias)
    key = functional.layer_norm(key.float(), norm.key_weight.shape, norm.key_weight, norm.key_bias)
    return rotation.apply(query).to(value.dtype), rotation.apply(key).to(value.dtype), value


def head_norm(D: int) -> HeadNorm:
    a, b, c, d = (normal(D, dtype=torch.float32) for _ in range(4))
    return HeadNorm(a, b, c, d)


def rotate(F: int, H: int, D: int, stored: torch.dtype | None) -> Row:
    """Head norm and rotation: in place within a frame (2D), or appended to a KV cache across frames (3D)."""
    P = GRID[0] * GRID[1] + SPECIAL
    shape, norm = (F, P, 3, H, D), head_norm(D)
    if stored is None:
        rotation = rotation_2d(*GRID, SPECIAL, D, DEVICE)
    else:
        times = torch.arange(F, dtype=torch.float64, device=DEVICE)
        rotation = rotation_3d(times, spatial_part(*GRID, SPECIAL, D, DEVICE), D)
    tables = tables_of(rotation)
    slots = torch.arange(F, device=DEVICE) * 2 * P

    def fused() -> Call:
        packed = normal(*shape)
        if stored is None:
            return lambda: qk_norm_rope(packed, norm, tables)
        append = Append(torch.empty(2, SLOTS, H, D, device=DEVICE, dtype=stored), slots)
        return lambda: qk_norm_rope(packed, norm, tables, append=append)

    def by_torch() -> Call:
        packed = normal(*shape)
        if stored is None:
            return lambda: rotated(packed, norm, rotation)
        kv_cache = torch.empty(2, SLOTS, H, D, device=DEVICE, dtype=stored)

        def call() -> Tensor:
            query, key, value = rotated(packed, norm, rotation)
            for f in range(F):
                kv_cache[0, 2 * P * f : 2 * P * f + P] = key[f]
                kv_cache[1, 2 * P * f : 2 * P * f + P] = value[f]
            return query

        return call

    moved = 8 if stored is None else 8 + 2 * stored.itemsize
    angles = 4 * tables.cos.numel() * 2
    return Row(f"qk_norm_rope {list(shape)} to {stored}", moved * F * P * H * D + angles, fused, by_torch)


def copy(M: int) -> Row:
    """Copies of special tokens into a KV cache's history."""
    spans = [[50_000 + 1005 * m, 6 * m, 6] for m in range(M)]
    copies = torch.tensor(spans, device=DEVICE)

    def make(call: Callable[[Tensor], object]) -> Callable[[], Call]:
        kv_cache = normal(2, SLOTS, 16, 64)
        return lambda: lambda: call(kv_cache)

    def by_torch(kv_cache: Tensor) -> None:
        for source, target, tokens in spans:
            kv_cache[:, target : target + tokens] = kv_cache[:, source : source + tokens]

    size = 2 * M * 2 * 6 * 16 * 64 * 2
    return Row(f"copy_slots, {M} copies", size, make(lambda kv_cache: copy_slots(kv_cache, copies)), make(by_torch))


def camera_image(width: int, height: int) -> Row:
    """A camera's image on the device, resized and normalised for the model."""
    geometry = resize_geometry((width, height), ResizeMode.CROP, 518, 14)
    tables = image_tables(geometry, MEAN, STD, DEVICE)
    mean, std = (torch.tensor(values, device=DEVICE).view(3, 1, 1) for values in (MEAN, STD))
    model = (geometry.model_size[1], geometry.model_size[0])

    def pixels() -> Tensor:
        return torch.randint(256, (height, width, 3), dtype=torch.uint8, device=DEVICE)

    def fused() -> Call:
        source, out = pixels(), torch.empty(3, *model, dtype=torch.bfloat16, device=DEVICE)
        between = torch.empty(tables.between_shape, dtype=torch.uint8, device=DEVICE)
        return lambda: preprocess(source, tables, between, out)

    def by_torch() -> Call:
        source = pixels()

        def call() -> Tensor:
            image = source.permute(2, 0, 1).flip(0).float().unsqueeze(0)
            for size in ((height, geometry.resized[0]), (geometry.resized[1], geometry.resized[0])):
                image = functional.interpolate(image, size, mode="bicubic", antialias=True).round_().clamp_(0.0, 255.0)
            image = image[0, :, geometry.crop_top : geometry.crop_top + model[0]] / 255.0
            return ((image - mean) / std).bfloat16()

        return call

    between = tables.between_shape[0] * tables.between_shape[1] * 3
    moved = width * height * 3 + 2 * between + 6 * model[0] * model[1]
    return Row(f"preprocess {width}x{height} to {model[1]}x{model[0]}", moved, fused, by_torch)


def gelu(N: int, C: int) -> Row:
    """PyTorch's exact GELU, which has no kernel here, to see whether one is needed."""

    def make() -> Call:
        hidden = normal(N, 4 * C)
        return lambda: functional.gelu(hidden)

    return Row(f"PyTorch's gelu [{N}, {4 * C}]", 4 * N * 4 * C, make, make)


def rows() -> Iterator[Row]:
    for F, C in ((1, 1024), (8, 1024), (32, 1024), (8, 384), (8, 768), (8, 2048), (32, 256)):
        yield residual_and_norm(F, C)
    for stored in (None, torch.bfloat16, torch.float8_e4m3fn):
        for F, H, D in ((1, 16, 64), (8, 16, 64), (32, 16, 64), (8, 16, 128)):
            yield rotate(F, H, D, stored)
    yield from (copy(1), copy(8))
    yield from (camera_image(1920, 1080), camera_image(640, 480))
    yield from (gelu(1005, 1024), gelu(8040, 1024))


def describe(row: Row) -> str:
    """A row of the table."""
    fused_us = microseconds(row.fused, row.bytes)
    rate = row.bytes / fused_us * 1e6
    torch_us = microseconds(row.torch, row.bytes)
    share = rate / MEMORY_BYTES_PER_S
    return f"| {row.name} | {fused_us:.1f} | {rate / 1e9:.0f} | {share:.0%} | {torch_us:.1f} |"


def main(chosen: Sequence[Row]) -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    print("| call | us | GB/s | of 4.2 TB/s | PyTorch us |\n|---|---|---|---|---|", flush=True)
    for row in chosen:
        print(describe(row), flush=True)


if __name__ == "__main__":
    words = sys.argv[1:]
    main([row for row in rows() if not words or any(word in row.name for word in words)])
