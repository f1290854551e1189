"""Allocates for and launches the kernels of `chunk_kda`, in a file of its own so that importing it needs no triton."""

# mypy: disable-error-code="no-untyped-call, import-untyped"

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from ..configs import KdaConfig, kda_config
from .checks import KdaShape
from .context_parallel import SplitPlan, chain_kernel, map_kernel, plan_split
from .intra import intra_kernel
from .scan import scan_kernel

WHOLE = 2**30  # chunks of a piece where no sequence is cut


@dataclass(frozen=True, slots=True)
class ChunkCall:
    """The checked arguments of one call of `chunk_kda`."""

    shape: KdaShape
    tokens: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # q, k, v, g, beta
    A_log: torch.Tensor | None
    dt_bias: torch.Tensor | None
    lower_bound: float | None
    use_gate: bool
    use_l2norm: bool
    beta_factor: int  # 0: beta as it is; 1, 2: times its sigmoid
    initial_state: torch.Tensor | None
    state_v_first: bool
    cu_seqlens: torch.Tensor | None
    longest: int  # tokens of the longest sequence, or a guess of it
    chunk_size: int
    split: bool | None


@dataclass(frozen=True, slots=True)
class Blocks:
    """What the kernels are compiled for, apart from the model's sizes."""

    config: KdaConfig
    multiprocessors: int
    block_k: int  # K padded to a power of two
    tile_v: int  # columns of V that intra_kernel does at once
    block_v: int  # columns of V of one scan
    pad_v: int  # V padded to tile_v
    dot: object  # dtype of the operands of a product
    precision: str  # of products of such operands
    split: bool  # float32 products inside the inverse as three of bfloat16 parts: exact to 16 bits, at 16-bit inputs
    chain_precision: str

    def record(self, chunk_size: int) -> int:
        """Elements that intra_kernel leaves for one chunk of one value head."""
        return chunk_size * (3 * self.block_k + chunk_size + self.pad_v)


@cache
def blocks_for(device: torch.device, dtype: torch.dtype, K: int, V: int) -> Blocks:
    """Block sizes for a device and a dtype of q; fixed values only, nothing that depends on T."""
    block_k = max(16, triton.next_power_of_2(K))
    bits = 32 if dtype == torch.float32 else 16
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        capability, multiprocessors = (properties.major, properties.minor), properties.multi_processor_count
    else:  # the interpreter, which has no bfloat16 products
        capability, multiprocessors = (0, 0), 1
    config = kda_config(capability, bits, block_k)
    tile_v = 64
    emulated = device.type != "cuda"
    dot = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[dtype]
    return Blocks(
        config=config,
        multiprocessors=multiprocessors,
        block_k=block_k,
        tile_v=tile_v,
        block_v=min(config.block_v, tile_v),
        pad_v=triton.cdiv(V, tile_v) * tile_v,
        dot=tl.float32 if emulated else dot,
        precision="ieee" if emulated else "tf32x3",
        split=bits == 16 and not emulated,
        chain_precision="ieee" if emulated else "tf32x3",
    )


def launch_chunk(call: ChunkCall, o: torch.Tensor, final_state: torch.Tensor | None) -> None:
    """Write `o` and `final_state`; every launch is asynchronous. T, N > 0."""
    shape = call.shape
    q = call.tokens[0]
    blocks = blocks_for(q.device, q.dtype, shape.K, shape.V)
    C = call.chunk_size
    chunks = shape.N * triton.cdiv(shape.T, C) if call.cu_seqlens is None else shape.T // C + shape.N
    tiles = torch.empty(chunks * shape.HV * blocks.record(C), dtype=q.dtype, device=q.device)
    decay = torch.empty(chunks * shape.HV * blocks.block_k, dtype=torch.float32, device=q.device)
    _launch_intra(call, blocks, chunks, tiles, decay)
    plan = plan_split(
        tokens=shape.T, longest=call.longest, columns=shape.N * shape.HV * triton.cdiv(shape.V, blocks.block_v),
        chunk_size=C, multiprocessors=blocks.multiprocessors, costs=blocks.config.costs, split=call.split,
    )  # fmt: skip
    pieces = None if plan is None else _launch_maps(call, blocks, plan, tiles, decay)
    _launch_scan(call, blocks, plan, tiles, decay, pieces, o, final_state)


def _launch_intra(call: ChunkCall, blocks: Blocks, chunks: int, tiles: torch.Tensor, decay: torch.Tensor) -> None:
    shape, launch = call.shape, blocks.config.intra
    rows = [dense_rows(x) for x in call.tokens]
    bounded = call.use_gate and call.lower_bound is not None and rows[0].dtype != torch.float16
    intra_kernel[(chunks * shape.HV,)](
        *rows, call.A_log, call.dt_bias, call.cu_seqlens, tiles, decay,
        shape.T, shape.N, shape.scale, call.lower_bound,
        *[x.stride(1) for x in rows],
        shape.H, shape.HV, shape.K, shape.V, blocks.pad_v, call.chunk_size, blocks.block_k, min(blocks.block_k, blocks.config.block_s),
        blocks.tile_v, call.use_gate, call.use_l2norm, call.beta_factor, bounded,
        blocks.dot, blocks.precision, blocks.split,
        num_warps=launch.num_warps, num_stages=launch.num_stages, maxnreg=launch.maxnreg,
    )  # fmt: skip


def _launch_maps(
    call: ChunkCall, blocks: Blocks, plan: SplitPlan, tiles: torch.Tensor, decay: torch.Tensor
) -> torch.Tensor:
    shape, config = call.shape, blocks.config
    rows = blocks.block_k + blocks.pad_v
    slots = plan.slots(shape.N, shape.T, call.cu_seqlens is not None)
    pieces = torch.empty(
        slots * shape.HV * (rows + blocks.pad_v) * blocks.block_k, dtype=torch.float32, device=tiles.device
    )
    block_r = min(blocks.block_k, blocks.block_v)
    map_kernel[(slots * shape.HV * (rows // block_r),)](
        tiles, decay, pieces, call.cu_seqlens, shape.T, shape.N, plan.piece_chunks,
        shape.HV, blocks.pad_v, call.chunk_size, blocks.block_k, block_r, blocks.dot, blocks.precision,
        num_warps=config.maps.num_warps, num_stages=config.maps.num_stages, maxnreg=config.maps.maxnreg,
    )  # fmt: skip
    chain_block_v = min(config.chain_block_v, blocks.tile_v)
    chain_kernel[(shape.N * shape.HV * (blocks.pad_v // chain_block_v),)](
        pieces, call.initial_state, call.cu_seqlens, shape.T, shape.N, plan.piece_chunks,
        shape.HV, shape.K, shape.V, blocks.pad_v, call.chunk_size, blocks.block_k, chain_block_v,
        call.state_v_first, blocks.chain_precision,
        num_warps=config.chain.num_warps, num_stages=config.chain.num_stages, maxnreg=config.chain.maxnreg,
    )  # fmt: skip
    return pieces


def _launch_scan(
    call: ChunkCall, blocks: Blocks, plan: SplitPlan | None, tiles: torch.Tensor, decay: torch.Tensor,
    pieces: torch.Tensor | None, o: torch.Tensor, final_state: torch.Tensor | None,
) -> None:  # fmt: skip
    shape, launch = call.shape, blocks.config.scan
    slots = shape.N if plan is None else plan.slots(shape.N, shape.T, call.cu_seqlens is not None)
    scan_kernel[(slots * shape.HV * triton.cdiv(shape.V, blocks.block_v),)](
        tiles, decay, call.initial_state, pieces, call.cu_seqlens, o, final_state,
        shape.T, shape.N, WHOLE if plan is None else plan.piece_chunks,
        shape.HV, shape.K, shape.V, blocks.pad_v, call.chunk_size, blocks.block_k, blocks.block_v,
        call.state_v_first, blocks.dot, blocks.precision,
        num_warps=launch.num_warps, num_stages=launch.num_stages, maxnreg=launch.maxnreg,
    )  # fmt: skip


def dense_rows(x: torch.Tensor) -> torch.Tensor:
    """`x`, or a copy of it, so that a token's heads are dense and one stride leads from token to token over all rows
    of the batch, as in a slice of a fused projection."""
    dense = x.stride(-1) == 1 and (x.dim() == 3 or x.stride(2) == x.shape[3] or x.shape[2] == 1)
    even = x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
    return x if dense and even else x.contiguous()
