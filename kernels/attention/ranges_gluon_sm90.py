"""The kernel of `attend_ranges` for Hopper GPUs, in Gluon, which says what plain Triton leaves to its compiler.

A program is three roles. One group of warps copies blocks of keys and values into rings in shared memory. Two groups of
four warps each own BLOCK_P = 64 tokens and take turns on the matrix units: while one group multiplies, the other takes
exponentials. A group asks for the scores of the next block before the exponentials of this one, so neither waits for
the other's results.

Exponents are relative to `top`, the largest score of a token in the *first* block it sees, not of all. Nothing in the
loop then depends on a maximum, and no sum is ever rescaled: in float32 and bfloat16 a weight of 2^100 is as exact as
one of 1. A token whose scores rise beyond what its number format holds gives NaN, and `ranges_triton` does it again
with a running maximum.
"""

# Gluon's arguments have no Python types: a pointer is whatever the launcher passes.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, has-type"

import math

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .checks import AttentionShape

BLOCK_P, GROUPS, STAGES = gl.constexpr(64), gl.constexpr(2), gl.constexpr(4)
# Registers of a thread of the second group and of the copying warps; the first group gets what is left, as many as the
# second. With a memory in float8 the copying warps convert, and need more.
GROUP_REGISTERS, COPY_REGISTERS = gl.constexpr(240), gl.constexpr(24)
GROUP_REGISTERS_FP8, COPY_REGISTERS_FP8 = gl.constexpr(232), gl.constexpr(40)
RAW_STAGES = gl.constexpr(2)

# Named barriers of the multiprocessor. Triton takes 0, 1 and one for each role from 2 on; a ring's stage has one each,
# by which its readers say that it may be overwritten, and each group one by which it is given its turn.
KEYS_READ = gl.constexpr(5)
VALUES_READ = gl.constexpr(KEYS_READ.value + STAGES.value)
TURN = gl.constexpr(VALUES_READ.value + STAGES.value)
READ_ARRIVE = gl.constexpr("bar.arrive $1, 384; mov.b32 $0, $1;")  # 2 groups of 128 threads, and 128 that copy
READ_WAIT = gl.constexpr("bar.sync $1, 384; mov.b32 $0, $1;")
TURN_GIVE = gl.constexpr("bar.arrive $1, 256; mov.b32 $0, $1;")
TURN_TAKE = gl.constexpr("bar.sync $1, 256; mov.b32 $0, $1;")
# A role's warps end here instead of going back to where Triton lets them wait for more work: with that way back, ptxas
# (12.8 to 13.1) finds no registers to keep matrix products in flight and waits for each (C7512).
LEAVE = gl.constexpr("mov.b32 $0, $1; exit;")
EXP2 = gl.constexpr("ex2.approx.ftz.f32 $0, $1;")

GLUON_DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float8_e4m3fn: gl.float8e4nv}
group_barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # its name since Triton 3.7, and before


def launch_hopper(
    shape: AttentionShape, query: torch.Tensor, memory: torch.Tensor, ranges: torch.Tensor, out: torch.Tensor
) -> None:
    """Write `out` for checked arguments of heads of 64 or 128 channels; NaN for tokens that are to be done again."""
    programs = triton.cdiv(shape.P, BLOCK_P.value * GROUPS.value) * shape.H * shape.S
    block = [block_n(shape.D), shape.D]
    layout = gl.NVMMASharedLayout.get_default_for(block, GLUON_DTYPES[memory.dtype])
    keys, values = (TensorDescriptor.from_tensor(part.flatten(1), block, layout) for part in memory)
    hopper_kernel[(programs,)](
        query, keys, values, ranges, out,
        shape.D**-0.5 / math.log(2), shape.P, shape.R,
        query.stride(0), query.stride(1), out.stride(0), out.stride(1),
        shape.H, headroom(query.dtype),
        num_warps=4,
    )  # fmt: skip


def block_n(D: int) -> int:
    """Places of a block: scores of two blocks and the output of a group fill its registers."""
    return 128 if D == 64 else 64


def headroom(dtype: torch.dtype) -> float:
    """How far below 1 weights start, in powers of two: float16 ends at 2^16, bfloat16 at 2^128.

    A weight of 2^-14 is the smallest with all of float16's bits, so 2^-8 leaves 2^6 for smaller ones at full exactness
    (bfloat16's at 2^9), and scores may rise by 24 powers of two (16.6 in the exponent of e).
    """
    return 8.0 if dtype == torch.float16 else 0.0


@gluon.jit(do_not_specialize=["P", "R"])
def hopper_kernel(
    query_ptr, key_desc, value_desc, ranges_ptr, out_ptr,
    scale, P, R,
    stride_qs, stride_qp, stride_os, stride_op,
    H: gl.constexpr, HEADROOM: gl.constexpr,
):  # fmt: skip
    pid = gl.program_id(0)
    blocks_p = gl.cdiv(P, BLOCK_P * GROUPS)
    first_p = pid % blocks_p * (BLOCK_P * GROUPS)
    h, s = pid // blocks_p % H, (pid // (blocks_p * H)).to(gl.int64)
    BLOCK_N: gl.constexpr = key_desc.block_type.shape[0]
    D: gl.constexpr = key_desc.block_type.shape[1]
    DTYPE: gl.constexpr = query_ptr.dtype.element_ty
    BLOCK: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, D], DTYPE)
    FP8: gl.constexpr = key_desc.dtype != DTYPE
    query_ptr += s * stride_qs + h * D
    out_ptr += s * stride_os + h * D
    ranges_ptr += s * R * 2

    queries = gl.allocate_shared_memory(DTYPE, [GROUPS, BLOCK_P, D], BLOCK)
    keys = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, D], BLOCK)
    values = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, D], BLOCK)
    keys_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    values_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(keys_full.index(stage), count=1)
        mbarrier.init(values_full.index(stage), count=1)
    rings = (keys, values, keys_full, values_full)
    token = (query_ptr, out_ptr, stride_qp, stride_op, P)
    first = (0, first_p, token, ranges_ptr, scale, queries, rings, R, HEADROOM)
    second = (1, first_p + BLOCK_P, token, ranges_ptr, scale, queries, rings, R, HEADROOM)
    if FP8:
        raw_keys = gl.allocate_shared_memory(key_desc.dtype, [RAW_STAGES, BLOCK_N, D], key_desc.layout)
        raw_values = gl.allocate_shared_memory(key_desc.dtype, [RAW_STAGES, BLOCK_N, D], value_desc.layout)
        raw_full = gl.allocate_shared_memory(gl.int64, [RAW_STAGES, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(RAW_STAGES):
            mbarrier.init(raw_full.index(stage), count=1)
        fence_async_shared()
        raw = (raw_keys, raw_values, raw_full)
        convert = (key_desc, value_desc, ranges_ptr, h * D, rings, raw, R)
        gl.warp_specialize(
            [(attend_group, first), (attend_group, second), (convert_blocks, convert)],
            [4, 4],
            [GROUP_REGISTERS_FP8, COPY_REGISTERS_FP8],
        )
    else:
        fence_async_shared()
        copy = (key_desc, value_desc, ranges_ptr, h * D, rings, R)
        gl.warp_specialize(
            [(attend_group, first), (attend_group, second), (copy_blocks, copy)],
            [4, 4],
            [GROUP_REGISTERS, COPY_REGISTERS],
        )


@gluon.jit
def zeros(rows: gl.constexpr, columns: gl.constexpr, layout: gl.constexpr):
    return gl.full([rows, columns], 0.0, gl.float32, layout)


@gluon.jit
def run(ASM: gl.constexpr, number):
    # One instruction of PTX on a number, a barrier's where it is one.
    gl.inline_asm_elementwise(ASM, "=r,r", [number], gl.int32, False, 1)


@gluon.jit
def load_range(ranges_ptr, r):
    # Memory is less than 2^31 places: the copy engine's coordinates are 32 bits, its addresses 64.
    first = gl.load(ranges_ptr + r * 2).to(gl.int32)
    count = gl.maximum(gl.load(ranges_ptr + r * 2 + 1).to(gl.int32) - first, 0)
    return first, count


@gluon.jit
def copy_blocks(key_desc, value_desc, ranges_ptr, column, rings, R):
    # The last block of a range ends with the range, and overlaps the one before it: what lies beyond a range may be
    # NaN, and zero times NaN is NaN. Only a range shorter than a block reaches beyond its end.
    keys, values, keys_full, values_full = rings
    BLOCK_N: gl.constexpr = keys.shape[1]
    i, n = 0, 0
    for r in range(R):
        first, count = load_range(ranges_ptr, r)
        for j in range(gl.cdiv(count, BLOCK_N)):
            n = first + gl.maximum(gl.minimum(j * BLOCK_N, count - BLOCK_N), 0)
            copy_block(key_desc, n, column, keys, keys_full, KEYS_READ, i)
            copy_block(value_desc, n, column, values, values_full, VALUES_READ, i)
            i += 1
    if i > 0:  # groups ask for the scores of one block more than there are
        copy_block(key_desc, n, column, keys, keys_full, KEYS_READ, i)
    run(LEAVE, 0)


@gluon.jit
def copy_block(desc, n, column, ring, full, READ: gl.constexpr, i):
    stage = i % STAGES
    if i >= STAGES:
        run(READ_WAIT, READ + stage)
    mbarrier.expect(full.index(stage), desc.block_type.nbytes)
    tma.async_copy_global_to_shared(desc, [n, column], full.index(stage), ring.index(stage))


@gluon.jit
def convert_blocks(key_desc, value_desc, ranges_ptr, column, rings, raw, R):
    # As copy_blocks for a memory in float8: a block is converted while the next one is on its way.
    keys, _values, keys_full, _values_full = rings
    raw_keys, raw_values, raw_full = raw
    BLOCK_N: gl.constexpr = keys.shape[1]
    i = 0
    for r in range(R):
        first, count = load_range(ranges_ptr, r)
        for j in range(gl.cdiv(count, BLOCK_N)):
            n = first + gl.maximum(gl.minimum(j * BLOCK_N, count - BLOCK_N), 0)
            stage = i % RAW_STAGES
            mbarrier.expect(raw_full.index(stage), 2 * key_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(key_desc, [n, column], raw_full.index(stage), raw_keys.index(stage))
            tma.async_copy_global_to_shared(value_desc, [n, column], raw_full.index(stage), raw_values.index(stage))
            if i > 0:
                convert_pair(rings, raw, i - 1)
            i += 1
    if i > 0:
        convert_pair(rings, raw, i - 1)
        if i >= STAGES:
            run(READ_WAIT, KEYS_READ + i % STAGES)
        mbarrier.arrive(keys_full.index(i % STAGES), count=1)  # a block that is asked for and not used: anything
    run(LEAVE, 0)


@gluon.jit
def convert_pair(rings, raw, i):
    keys, values, keys_full, values_full = rings
    raw_keys, raw_values, raw_full = raw
    mbarrier.wait(raw_full.index(i % RAW_STAGES), i // RAW_STAGES & 1)
    convert_block(raw_keys.index(i % RAW_STAGES), keys, keys_full, KEYS_READ, i)
    convert_block(raw_values.index(i % RAW_STAGES), values, values_full, VALUES_READ, i)


@gluon.jit
def convert_block(block, ring, full, READ: gl.constexpr, i):
    ROWS: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    stage = i % STAGES
    if i >= STAGES:
        run(READ_WAIT, READ + stage)
    # 32 elements of a thread at a time: all that its registers hold, for each piece costs barriers.
    PIECE: gl.constexpr = 4096 // block.shape[1]
    for part in gl.static_range(block.shape[0] // PIECE):
        piece = block.slice(part * PIECE, PIECE, 0).load(ROWS)
        # By way of float32: from float16 to bfloat16 at once is an instruction of the unit that takes exponentials.
        ring.index(stage).slice(part * PIECE, PIECE, 0).store(piece.to(gl.float16).to(gl.float32).to(ring.dtype))
    fence_async_shared()
    group_barrier()
    mbarrier.arrive(full.index(stage), count=1)


@gluon.jit
def wait_full(full, i):
    mbarrier.wait(full.index(i % STAGES), i // STAGES & 1)


@gluon.constexpr_function
def product_layout(columns):
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@gluon.jit
def attend_group(GROUP: gl.constexpr, first_p, token, ranges_ptr, scale, queries, rings, R, HEADROOM: gl.constexpr):
    # The output of 64 tokens for one head. The order of turns is strict: group 0 begins, and either gives its turn away
    # as often as it takes it, whatever the blocks are.
    query_ptr, out_ptr, stride_qp, stride_op, P = token
    keys, _values, keys_full, _values_full = rings
    BLOCK_N: gl.constexpr = keys.shape[1]
    D: gl.constexpr = keys.shape[2]
    SCORES: gl.constexpr = product_layout(BLOCK_N)
    OUT: gl.constexpr = product_layout(D)
    query = queries.index(GROUP)
    load_query(query_ptr, stride_qp, first_p, P, query, D)

    total_count, first_count = 0, 0
    for r in range(R):
        _first, count = load_range(ranges_ptr, r)
        first_count = gl.where(first_count == 0, count, first_count)
        total_count += count

    out = zeros(BLOCK_P, D, OUT)
    if total_count > 0:
        wait_full(keys_full, 0)
        score = warpgroup_mma_wait(0, deps=[ask_scores(query, keys, 0)])
        run(READ_ARRIVE, KEYS_READ)
        known = gl.arange(0, BLOCK_N, gl.SliceLayout(0, SCORES)) < first_count
        top = gl.max(gl.where(known[None, :], score, -float("inf")), 1) * scale + HEADROOM
        weight = to_weights(zeros(BLOCK_P, BLOCK_N, SCORES), keys.dtype, D)
        total = sum_columns(zeros(BLOCK_P, BLOCK_N, SCORES))
        acc = warpgroup_mma_init(out)
        i = 0
        if GROUP == 1:
            run(TURN_TAKE, TURN + 1)
        for r in range(R):
            _first, count = load_range(ranges_ptr, r)
            whole = count // BLOCK_N
            for _pair in range(whole // 2):  # two at a time: their scores need not change registers
                score, total, acc, weight, i = attend_block(
                    score, total, acc, weight, i, query, top, scale, rings, GROUP
                )
                score, total, acc, weight, i = attend_block(
                    score, total, acc, weight, i, query, top, scale, rings, GROUP
                )
            odd, rest = whole % 2, count % BLOCK_N
            for j in range(odd + (rest > 0).to(gl.int32)):
                last = j >= odd
                begin = gl.where(last & (whole > 0), BLOCK_N - rest, 0)
                end = gl.where(last & (whole == 0), rest, BLOCK_N)
                score, total, acc, weight, i = attend_part(
                    score, total, acc, weight, i, query, top, scale, rings, GROUP, begin, end
                )
        if GROUP == 0:
            run(TURN_GIVE, TURN + 1)
        out, weight = warpgroup_mma_wait(0, deps=[acc, weight])
        out = divide(out, gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, OUT)))
    offs_p = first_p + gl.arange(0, BLOCK_P, gl.SliceLayout(1, OUT))
    offs_d = gl.arange(0, D, gl.SliceLayout(0, OUT))
    out_ptrs = out_ptr + offs_p.to(gl.int64)[:, None] * stride_op + offs_d[None, :]
    gl.store(out_ptrs, out.to(keys.dtype), mask=(offs_p < P)[:, None])
    run(LEAVE, 0)


@gluon.jit
def load_query(query_ptr, stride_qp, first_p, P, query, D: gl.constexpr):
    ROWS: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    offs_p = first_p + gl.arange(0, BLOCK_P, gl.SliceLayout(1, ROWS))
    offs_d = gl.arange(0, D, gl.SliceLayout(0, ROWS))
    ptrs = query_ptr + offs_p.to(gl.int64)[:, None] * stride_qp + offs_d[None, :]
    query.store(gl.load(ptrs, mask=(offs_p < P)[:, None], other=0.0))
    fence_async_shared()
    group_barrier()


@gluon.jit
def ask_scores(query, keys, i):
    BLOCK_N: gl.constexpr = keys.shape[1]
    unused = zeros(BLOCK_P, BLOCK_N, product_layout(BLOCK_N))
    return warpgroup_mma(query, keys.index(i % STAGES).permute((1, 0)), unused, use_acc=False, is_async=True)


@gluon.jit
def exp2(x):
    return gl.inline_asm_elementwise(EXP2, "=f,f", [x], gl.float32, True, 1)


@gluon.jit
def to_weights(x, DTYPE: gl.constexpr, D: gl.constexpr):
    # The layouts of a product and of a left operand agree: nothing moves.
    return gl.convert_layout(x.to(DTYPE), gl.DotOperandLayout(0, product_layout(D), 2))


@gluon.jit
def sum_columns(x):
    # Sums of columns 8 apart: each thread's own, so threads meet once, after the last block.
    return gl.sum(x.reshape([x.shape[0], x.shape[1] // 8, 8]), 1)


@gluon.jit
def attend_block(score, total, acc, weight, i, query, top, scale, rings, GROUP: gl.constexpr):
    # Block i, whole. In: its scores, the turn, and the product of block i - 1's weights and values in flight. Out: the
    # same for block i + 1. A turn is the product with values i and the scores of block i + 2 (asked for by the next
    # call).
    keys, values, keys_full, values_full = rings
    wait_full(keys_full, i + 1)
    asked = ask_scores(query, keys, i + 1)
    run(TURN_GIVE, TURN + 1 - GROUP)
    x = exp2(gl.fma(score, scale, -top[:, None]))
    total += sum_columns(x)
    acc, weight = warpgroup_mma_wait(1, deps=[acc, weight])
    if i > 0:
        run(READ_ARRIVE, VALUES_READ + (i - 1) % STAGES)
    weight = to_weights(x, keys.dtype, keys.shape[2])
    wait_full(values_full, i)
    run(TURN_TAKE, TURN + GROUP)
    acc = warpgroup_mma(weight, values.index(i % STAGES), acc, is_async=True)
    score = warpgroup_mma_wait(1, deps=[asked])
    run(READ_ARRIVE, KEYS_READ + (i + 1) % STAGES)
    return score, total, acc, weight, i + 1


@gluon.jit
def attend_part(score, total, acc, weight, i, query, top, scale, rings, GROUP: gl.constexpr, begin, end):
    # Places begin to end of block i, at most two blocks a range: as attend_block, but nothing overlaps.
    keys, values, keys_full, values_full = rings
    BLOCK_N: gl.constexpr = keys.shape[1]
    run(TURN_GIVE, TURN + 1 - GROUP)
    out, weight = warpgroup_mma_wait(0, deps=[acc, weight])
    if i > 0:
        run(READ_ARRIVE, VALUES_READ + (i - 1) % STAGES)
    column = gl.arange(0, BLOCK_N, gl.SliceLayout(0, product_layout(BLOCK_N)))
    known = (column >= begin) & (column < end)
    x = exp2(gl.where(known[None, :], gl.fma(score, scale, -top[:, None]), -float("inf")))
    total += sum_columns(x)
    weight = to_weights(x, keys.dtype, keys.shape[2])
    wait_full(values_full, i)
    wait_full(keys_full, i + 1)
    if end < BLOCK_N:
        clear_from(values.index(i % STAGES), end)
    run(TURN_TAKE, TURN + GROUP)
    acc = warpgroup_mma(weight, values.index(i % STAGES), warpgroup_mma_init(out), is_async=True)
    score = warpgroup_mma_wait(0, deps=[ask_scores(query, keys, i + 1)])
    run(READ_ARRIVE, KEYS_READ + (i + 1) % STAGES)
    return score, total, acc, weight, i + 1


@gluon.jit
def clear_from(block, end):
    # Both groups do this to the block that they share, and write the same.
    ROWS: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    for part in gl.static_range(block.shape[0] // 16):
        piece = block.slice(part * 16, 16, 0)
        row = part * 16 + gl.arange(0, 16, gl.SliceLayout(1, ROWS))
        piece.store(gl.where((row < end)[:, None], piece.load(ROWS), 0.0).to(block.dtype))
    fence_async_shared()
    group_barrier()


@gluon.jit
def divide(out, total):
    # NaN for a token of which anything left its number format: weights, their sum, or the products.
    out /= total[:, None]
    outside = gl.max(gl.where(gl.abs(out) < float("inf"), 0, 1), 1)
    good = (outside == 0) & (total > 0) & (total < float("inf"))
    return gl.where(good[:, None], out, float("nan"))
