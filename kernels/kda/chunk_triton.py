"""Allocates memory and launches the kernels of `chunk_kda`, in a file of its own: chunk.py imports without triton."""

# mypy: disable-error-code="no-untyped-call, import-untyped"

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from . import workspace as record
from .checks import KdaShape, dense_rows
from .context_parallel import chain_kernel, map_kernel, plan_split
from .intra import ALWAYS, NEVER, WHERE_STEEP, intra_kernel
from .launch import BoundKernel, bound_kernel
from .options import KdaOptions, KdaTensors
from .scan import scan_kernel
from .state_pool import rows_are_dense
from .tuning import KdaConfig, Launch, kda_config

MAX_MAP = 128  # sequences with wider keys are never cut, because chain_kernel holds a piece's whole M in shared memory
WHOLE = 2**30  # number of chunks per piece if no sequence is cut
ROOMY_PROGRAMS = 2
"""Up to this many programs of `intra_kernel` per multiprocessor, each may use all registers. With T 1005, H 16 and
D 64, that takes 18.8 us instead of 24.6 us."""
TILE_V = 64  # number of columns of V per step of intra_kernel; Triton 3.6 miscompiled narrower products


@dataclass(frozen=True, slots=True)
class Blocks:
    """Compile-time constants of the kernels, apart from the model's sizes."""

    config: KdaConfig
    multiprocessors: int
    block_k: int  # K, padded
    pad_v: int  # V, padded to a multiple of TILE_V
    dot: Any  # operand dtype of products
    precision: str  # precision of these products
    split: bool  # float32 products in the inverse are three products of bfloat16 parts: 16 bits, for 16-bit inputs


@cache
def blocks_for(device: torch.device, dtype: torch.dtype, K: int, V: int, config: KdaConfig | None = None) -> Blocks:
    """The constants for a device and a dtype of q. They do not depend on T. `config` None uses the device's table."""
    block_k = max(64, triton.next_power_of_2(K))
    pad_v = triton.cdiv(V, TILE_V) * TILE_V
    bits = 32 if dtype == torch.float32 else 16
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        capability, multiprocessors = (properties.major, properties.minor), properties.multi_processor_count
        dot = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[dtype]
        precision, split = "tf32x3", bits == 16
    else:  # Triton's interpreter, which has no bfloat16 products
        capability, multiprocessors = (0, 0), 1
        dot, precision, split = tl.float32, "ieee", False
    config = config or kda_config(capability, bits, block_k)
    return Blocks(config, multiprocessors, block_k, pad_v, dot, precision, split)


def prepare(
    shape: KdaShape, tensors: KdaTensors, longest: int | None, options: KdaOptions, config: KdaConfig | None = None
) -> "ChunkCall":
    """Plan the launches. Arguments must have been checked, and T and N must be above 0.

    The returned call takes any tensors of the same shapes, strides, dtypes, device and alignment. `longest` is the
    length of the longest sequence. It is None if only the device knows the lengths; all sequences are then assumed to
    be equally long.
    """
    readable = _readable(tensors)
    copies = any(x is not y for x, y in zip(readable, tensors, strict=True))
    if longest is None:
        longest = shape.T if tensors.cu_seqlens is None else -(-shape.T // shape.N)
    blocks = blocks_for(tensors.q.device, tensors.q.dtype, shape.K, shape.V, config)
    return ChunkCall(shape, readable, longest, options, copies, blocks)


class ChunkCall:
    """A planned call. It holds everything that does not depend on the values of the tensors."""

    def __init__(
        self,
        shape: KdaShape,
        tensors: KdaTensors,
        longest: int,
        options: KdaOptions,
        copies: bool,
        blocks: Blocks,
    ) -> None:
        self._shape, self._options, self._copies, self._blocks = shape, options, copies, blocks
        self._device, self._dtype = tensors.q.device, tensors.q.dtype
        self._strides = tuple(x.stride(1) for x in tensors[:5])
        self._o_shape = (shape.B, shape.T, shape.HV, shape.V)
        new_state = options.output_final_state and not options.inplace_final_state
        self._state_shape = shape.state(options.state_v_first) if new_state else None
        state, row = tensors.initial_state, shape.HV * shape.K * shape.V
        self._initial_stride = row if state is None else state.stride(0)
        self._final_stride = self._initial_stride if options.inplace_final_state else row
        config, programs = blocks.config, shape.N * shape.HV
        self._plan = plan_split(
            tokens=shape.T, longest=longest, whole_programs=programs * -(-shape.V // config.scan_block_v),
            piece_programs=programs * -(-shape.V // config.pieces_block_v), chunk_size=options.chunk_size,
            multiprocessors=blocks.multiprocessors, costs=config.costs,
            split=options.split if blocks.block_k <= MAX_MAP else False,
        )  # fmt: skip
        C = options.chunk_size
        chunks = shape.N * -(-shape.T // C) if tensors.cu_seqlens is None else shape.T // C + shape.N
        self._programs = chunks * shape.HV
        self._elements = self._programs * record.elements(C, blocks.block_k, blocks.pad_v)
        kinds = tuple(None if x is None else (x.dtype, x.data_ptr() % 16 == 0) for x in tensors.on_device)
        strides = (self._strides, self._initial_stride, self._final_stride)
        kind = (self._device, kinds, *strides, options.has_final_state)
        roomy = self._programs <= ROOMY_PROGRAMS * blocks.multiprocessors
        intra = replace(config.intra, maxnreg=None) if roomy else config.intra
        self._intra = _intra(shape, options, blocks, self._dtype, intra, kind)
        launch, width = config.scan, config.scan_block_v
        if self._plan is not None:
            launch, width = config.pieces, config.pieces_block_v
        block_v = min(width, blocks.pad_v)
        self._columns = shape.HV * -(-shape.V // block_v)
        self._scan = _scan(shape, options, blocks, launch, block_v, (*kind, self._plan is None))
        if self._plan is not None:
            self._maps, self._chain = _maps(shape, options, blocks, kind)

    def __call__(self, tensors: KdaTensors) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self._device.type == "cuda" and self._device.index != torch.cuda.current_device():
            with torch.cuda.device(self._device):
                return self._launch(tensors)
        return self._launch(tensors)

    def _launch(self, tensors: KdaTensors) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self._copies:
            tensors = _readable(tensors)
        initial_state, cuts, read_rows = tensors.initial_state, tensors.cu_seqlens, tensors.state_indices
        shape, plan = self._shape, self._plan
        o = torch.empty(self._o_shape, dtype=self._dtype, device=self._device)
        final_state = initial_state if self._options.inplace_final_state else None
        if self._state_shape is not None:
            final_state = torch.empty(self._state_shape, dtype=torch.float32, device=self._device)
        records = torch.empty(self._elements, dtype=self._dtype, device=self._device)
        self._intra(
            self._programs, *tensors[:7], cuts, records, shape.T, shape.N, shape.scale, self._options.lower_bound,
            *self._strides,
        )  # fmt: skip
        slots, pieces, piece_chunks = shape.N, None, WHOLE
        if plan is not None:
            slots, piece_chunks = plan.slots(shape.N, shape.T, cuts is not None), plan.piece_chunks
            pieces = self._incoming_states(records, (initial_state, read_rows), cuts, slots, piece_chunks)
            initial_state = None  # already included in the incoming state of the first piece
        self._scan(
            slots * self._columns, records, initial_state, pieces, cuts, o, final_state, read_rows,
            tensors.written_indices, shape.T, shape.N, piece_chunks, self._initial_stride, self._final_stride,
        )  # fmt: skip
        return o, final_state

    def _incoming_states(
        self,
        records: torch.Tensor,
        states: tuple[torch.Tensor | None, torch.Tensor | None],
        cuts: torch.Tensor | None,
        slots: int,
        piece_chunks: int,
    ) -> torch.Tensor:
        shape, blocks = self._shape, self._blocks
        rows = blocks.block_k + blocks.pad_v
        size = slots * shape.HV * (rows + blocks.pad_v) * blocks.block_k
        pieces = torch.empty(size, dtype=torch.float32, device=self._device)
        sizes = (shape.T, shape.N, piece_chunks)
        self._maps(slots * shape.HV * -(-rows // blocks.config.maps_block_r), records, pieces, cuts, *sizes)
        initial_state, read_rows = states
        self._chain(
            shape.N * shape.HV * (blocks.pad_v // blocks.config.chain_block_v), pieces, initial_state, cuts, read_rows,
            *sizes, self._initial_stride,
        )  # fmt: skip
        return pieces


def _intra(
    shape: KdaShape, options: KdaOptions, blocks: Blocks, dtype: torch.dtype, launch: Launch, kind: tuple[Any, ...]
) -> BoundKernel:
    # exp(80) fits the range of bfloat16, but not the range of float16, nor that of the parts of split float32 products.
    halves = ALWAYS
    if dtype == torch.bfloat16:
        halves = NEVER if options.use_gate_in_kernel and options.lower_bound is not None else WHERE_STEEP
    constants = (
        shape.H, shape.HV, shape.K, shape.V, blocks.pad_v, options.chunk_size, blocks.block_k, blocks.config.block_s,
        TILE_V, options.use_gate_in_kernel, options.use_qk_l2norm_in_kernel, options.beta_factor, halves, blocks.dot,
        blocks.precision, blocks.split,
    )  # fmt: skip
    return bound_kernel(intra_kernel, constants, launch, (*kind, options.lower_bound is None))


def _scan(
    shape: KdaShape, options: KdaOptions, blocks: Blocks, launch: Launch, block_v: int, kind: tuple[Any, ...]
) -> BoundKernel:
    constants = (
        shape.HV, shape.K, shape.V, blocks.pad_v, options.chunk_size, blocks.block_k, block_v,
        options.state_v_first, blocks.dot, blocks.precision,
    )  # fmt: skip
    return bound_kernel(scan_kernel, constants, launch, kind)


def _maps(
    shape: KdaShape, options: KdaOptions, blocks: Blocks, kind: tuple[Any, ...]
) -> tuple[BoundKernel, BoundKernel]:
    maps = (
        shape.HV, blocks.pad_v, options.chunk_size, blocks.block_k, blocks.config.maps_block_r, blocks.dot,
        blocks.precision,
    )  # fmt: skip
    chain = (
        shape.HV, shape.K, shape.V, blocks.pad_v, options.chunk_size, blocks.block_k, blocks.config.chain_block_v,
        options.state_v_first, blocks.precision,
    )  # fmt: skip
    return (
        bound_kernel(map_kernel, maps, blocks.config.maps, kind),
        bound_kernel(chain_kernel, chain, blocks.config.chain, kind),
    )


def _readable(tensors: KdaTensors) -> KdaTensors:
    # The same tensors, in layouts that the kernels can read.
    q, k, v, g, beta = (dense_rows(x) for x in tensors[:5])
    state = tensors.initial_state
    if state is not None and not rows_are_dense(state):
        state = state.contiguous()
    return KdaTensors(
        q, k, v, g, beta, _contiguous(tensors.A_log), _contiguous(tensors.dt_bias), state,
        _contiguous(tensors.cu_seqlens), _contiguous(tensors.state_indices), _contiguous(tensors.written_indices),
        tensors.cu_seqlens_cpu,
    )  # fmt: skip


def _contiguous(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.contiguous()
