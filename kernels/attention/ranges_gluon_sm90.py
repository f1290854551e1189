"""The Hopper kernel of `attend_ranges`, in Gluon, where the code decides what plain Triton leaves to its compiler.

Warps are specialised. The producer warps copy blocks of keys and values into a ring of shared memory stages. Two
consumer warp groups, of four warps each, process BLOCK_P = 64 tokens each and alternate (ping-pong): while one occupies
the tensor cores, the other computes exponentials. A consumer issues the scores of the next block before the
exponentials of the current one, so the two computations do not wait for each other.

Exponents are relative to `row_max`, a token's largest score in the *first* block it sees, not in all blocks. So nothing
in the loop depends on a running maximum, and no sum is ever rescaled. This is exact, because in float32 and bfloat16 a
weight of 2^100 is as exact as a weight of 1. If a token's scores grow beyond the range of the number format, its result
is NaN, and `ranges_triton` recomputes the token with a running maximum.
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

BLOCK_P, CONSUMERS, STAGES = gl.constexpr(64), gl.constexpr(2), gl.constexpr(4)
# Registers per thread of the second consumer and of the producer. The first consumer gets the remaining registers, as
# many as the second. With a cache in float8, the producer also converts blocks and needs more.
CONSUMER_REGISTERS, PRODUCER_REGISTERS = gl.constexpr(240), gl.constexpr(24)
CONSUMER_REGISTERS_FP8, PRODUCER_REGISTERS_FP8 = gl.constexpr(232), gl.constexpr(40)
RAW_STAGES = gl.constexpr(2)

# Numbers of the multiprocessor's named barriers. Triton uses 0, 1 and, from 2 on, one per role. Each stage has a
# barrier on which its consumers signal that the stage may be overwritten. Each consumer has a barrier on which it waits
# for its turn in the ping-pong.
KEYS_READ = gl.constexpr(5)
VALUES_READ = gl.constexpr(KEYS_READ.value + STAGES.value)
PING_PONG = gl.constexpr(VALUES_READ.value + STAGES.value)
READ_ARRIVE = gl.constexpr("bar.arrive $1, 384; mov.b32 $0, $1;")  # 128 threads of each consumer and of the producer
READ_WAIT = gl.constexpr("bar.sync $1, 384; mov.b32 $0, $1;")
PING_PONG_ARRIVE = gl.constexpr("bar.arrive $1, 256; mov.b32 $0, $1;")
PING_PONG_WAIT = gl.constexpr("bar.sync $1, 256; mov.b32 $0, $1;")
# Warps of a role exit with this instruction, instead of returning to the loop in which Triton lets them wait for more
# work. With that loop, ptxas (12.8 to 13.1) has not enough registers to keep matrix products in flight, and waits for
# each of them (C7512).
EXIT = gl.constexpr("mov.b32 $0, $1; exit;")
EXP2 = gl.constexpr("ex2.approx.ftz.f32 $0, $1;")

GLUON_DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16, torch.float8_e4m3fn: gl.float8e4nv}
warpgroup_barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # named `barrier` since Triton 3.7


def launch_sm90(
    shape: AttentionShape, query: torch.Tensor, kv_cache: torch.Tensor, ranges: torch.Tensor, out: torch.Tensor
) -> None:
    """Write `out`, given checked arguments with D 64 or 128. Tokens that must be recomputed are NaN."""
    programs = triton.cdiv(shape.P, BLOCK_P.value * CONSUMERS.value) * shape.H * shape.S
    block = [block_n(shape.D), shape.D]
    layout = gl.NVMMASharedLayout.get_default_for(block, GLUON_DTYPES[kv_cache.dtype])
    keys, values = (TensorDescriptor.from_tensor(part.flatten(1), block, layout) for part in kv_cache)
    ranges_sm90_kernel[(programs,)](
        query, keys, values, ranges, out,
        shape.D**-0.5 / math.log(2), shape.P, shape.R,
        query.stride(0), query.stride(1), out.stride(0), out.stride(1),
        shape.H, headroom(query.dtype),
        num_warps=4,
    )  # fmt: skip


def block_n(D: int) -> int:
    """Number of slots per block, chosen so that the scores of two blocks and the output fill a consumer's registers."""
    return 128 if D == 64 else 64


def headroom(dtype: torch.dtype) -> float:
    """How far below 1 the largest weight of the first block is set, in powers of two, so that later ones may be larger.

    The largest numbers are about 2^16 in float16 and 2^128 in bfloat16, which needs no headroom. In float16, the
    largest weight of the first block is 2^-8. Later weights may then be larger by 24 powers of two (16.6 in the
    exponent of e). Smaller weights keep all of float16's bits down to 2^-14, which is a factor of 2^6 (2^9 if
    bfloat16's precision is enough).
    """
    return 8.0 if dtype == torch.float16 else 0.0


@gluon.jit(do_not_specialize=["P", "R"])
def ranges_sm90_kernel(
    query_ptr, key_desc, value_desc, ranges_ptr, out_ptr,
    scale, P, R,
    stride_qs, stride_qp, stride_os, stride_op,
    H: gl.constexpr, HEADROOM: gl.constexpr,
):  # fmt: skip
    pid = gl.program_id(0)
    blocks_p = gl.cdiv(P, BLOCK_P * CONSUMERS)
    first_p = pid % blocks_p * (BLOCK_P * CONSUMERS)
    h, s = pid // blocks_p % H, (pid // (blocks_p * H)).to(gl.int64)
    BLOCK_N: gl.constexpr = key_desc.block_type.shape[0]
    D: gl.constexpr = key_desc.block_type.shape[1]
    DTYPE: gl.constexpr = query_ptr.dtype.element_ty
    BLOCK: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, D], DTYPE)
    FP8: gl.constexpr = key_desc.dtype != DTYPE
    query_ptr += s * stride_qs + h * D
    out_ptr += s * stride_os + h * D
    ranges_ptr += s * R * 2

    queries = gl.allocate_shared_memory(DTYPE, [CONSUMERS, BLOCK_P, D], BLOCK)
    keys = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, D], BLOCK)
    values = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, D], BLOCK)
    keys_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    values_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(keys_full.index(stage), count=1)
        mbarrier.init(values_full.index(stage), count=1)
    smem_stages = (keys, values, keys_full, values_full)
    token = (query_ptr, out_ptr, stride_qp, stride_op, P)
    first = (0, first_p, token, ranges_ptr, scale, queries, smem_stages, R, HEADROOM)
    second = (1, first_p + BLOCK_P, token, ranges_ptr, scale, queries, smem_stages, R, HEADROOM)
    if FP8:
        raw_keys = gl.allocate_shared_memory(key_desc.dtype, [RAW_STAGES, BLOCK_N, D], key_desc.layout)
        raw_values = gl.allocate_shared_memory(key_desc.dtype, [RAW_STAGES, BLOCK_N, D], value_desc.layout)
        raw_full = gl.allocate_shared_memory(gl.int64, [RAW_STAGES, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(RAW_STAGES):
            mbarrier.init(raw_full.index(stage), count=1)
        fence_async_shared()
        raw = (raw_keys, raw_values, raw_full)
        convert = (key_desc, value_desc, ranges_ptr, h * D, smem_stages, raw, R)
        gl.warp_specialize(
            [(consume_blocks, first), (consume_blocks, second), (produce_converted_blocks, convert)],
            [4, 4],
            [CONSUMER_REGISTERS_FP8, PRODUCER_REGISTERS_FP8],
        )
    else:
        fence_async_shared()
        copy = (key_desc, value_desc, ranges_ptr, h * D, smem_stages, R)
        gl.warp_specialize(
            [(consume_blocks, first), (consume_blocks, second), (produce_blocks, copy)],
            [4, 4],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )


@gluon.jit
def zeros(rows: gl.constexpr, columns: gl.constexpr, layout: gl.constexpr):
    return gl.full([rows, columns], 0.0, gl.float32, layout)


@gluon.jit
def run_ptx(ASM: gl.constexpr, number):
    # Runs one PTX instruction with an integer operand. For an instruction on a barrier, that is the barrier's number.
    gl.inline_asm_elementwise(ASM, "=r,r", [number], gl.int32, False, 1)


@gluon.jit
def load_range(ranges_ptr, r):
    # The cache has fewer than 2^31 slots, so the copy engine's 32-bit coordinates suffice. Its addresses have 64 bits.
    first = gl.load(ranges_ptr + r * 2).to(gl.int32)
    count = gl.maximum(gl.load(ranges_ptr + r * 2 + 1).to(gl.int32) - first, 0)
    return first, count


@gluon.jit
def produce_blocks(key_desc, value_desc, ranges_ptr, column, smem_stages, R):
    # The producer. The last block of a range ends where the range ends, so it overlaps the block before it. It must not
    # reach beyond the range, where slots may hold NaN, because zero times NaN is NaN. Only if a range is shorter than a
    # block does its block reach beyond its end.
    keys, values, keys_full, values_full = smem_stages
    BLOCK_N: gl.constexpr = keys.shape[1]
    i, n = 0, 0
    for r in range(R):
        first, count = load_range(ranges_ptr, r)
        for j in range(gl.cdiv(count, BLOCK_N)):
            n = first + gl.maximum(gl.minimum(j * BLOCK_N, count - BLOCK_N), 0)
            produce_block(key_desc, n, column, keys, keys_full, KEYS_READ, i)
            produce_block(value_desc, n, column, values, values_full, VALUES_READ, i)
            i += 1
    if i > 0:  # consumers issue the scores of one extra block, but do not use them
        produce_block(key_desc, n, column, keys, keys_full, KEYS_READ, i)
    run_ptx(EXIT, 0)


@gluon.jit
def produce_block(desc, n, column, stages, full, READ: gl.constexpr, i):
    stage = i % STAGES
    if i >= STAGES:
        run_ptx(READ_WAIT, READ + stage)
    mbarrier.expect(full.index(stage), desc.block_type.nbytes)
    tma.async_copy_global_to_shared(desc, [n, column], full.index(stage), stages.index(stage))


@gluon.jit
def produce_converted_blocks(key_desc, value_desc, ranges_ptr, column, smem_stages, raw, R):
    # The producer for a cache in float8. It converts a block while the next one is being copied.
    keys, _values, keys_full, _values_full = smem_stages
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
                convert_pair(smem_stages, raw, i - 1)
            i += 1
    if i > 0:
        convert_pair(smem_stages, raw, i - 1)
        if i >= STAGES:
            run_ptx(READ_WAIT, KEYS_READ + i % STAGES)
        mbarrier.arrive(keys_full.index(i % STAGES), count=1)  # an extra block: waited for, but its contents are unused
    run_ptx(EXIT, 0)


@gluon.jit
def convert_pair(smem_stages, raw, i):
    keys, values, keys_full, values_full = smem_stages
    raw_keys, raw_values, raw_full = raw
    mbarrier.wait(raw_full.index(i % RAW_STAGES), i // RAW_STAGES & 1)
    convert_block(raw_keys.index(i % RAW_STAGES), keys, keys_full, KEYS_READ, i)
    convert_block(raw_values.index(i % RAW_STAGES), values, values_full, VALUES_READ, i)


@gluon.jit
def convert_block(block, stages, full, READ: gl.constexpr, i):
    ROWS: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    stage = i % STAGES
    if i >= STAGES:
        run_ptx(READ_WAIT, READ + stage)
    # Each piece has 32 elements per thread, as many as a thread's registers hold, because every piece costs barriers.
    PIECE: gl.constexpr = 4096 // block.shape[1]
    for part in gl.static_range(block.shape[0] // PIECE):
        piece = block.slice(part * PIECE, PIECE, 0).load(ROWS)
        # Converted via float32, because direct conversion from float16 to bfloat16 runs on the unit that computes
        # exponentials.
        stages.index(stage).slice(part * PIECE, PIECE, 0).store(piece.to(gl.float16).to(gl.float32).to(stages.dtype))
    fence_async_shared()
    warpgroup_barrier()
    mbarrier.arrive(full.index(stage), count=1)


@gluon.jit
def wait_full(full, i):
    mbarrier.wait(full.index(i % STAGES), i // STAGES & 1)


@gluon.constexpr_function
def product_layout(columns):
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 16])


@gluon.jit
def consume_blocks(
    CONSUMER: gl.constexpr, first_p, token, ranges_ptr, scale, queries, smem_stages, R, HEADROOM: gl.constexpr
):
    # A consumer, which computes the output of 64 tokens for one head. The consumers' turns alternate strictly: consumer
    # 0 begins, and each consumer hands over as many turns as it takes, however many blocks there are.
    query_ptr, out_ptr, stride_qp, stride_op, P = token
    keys, _values, keys_full, _values_full = smem_stages
    BLOCK_N: gl.constexpr = keys.shape[1]
    D: gl.constexpr = keys.shape[2]
    SCORES: gl.constexpr = product_layout(BLOCK_N)
    OUT: gl.constexpr = product_layout(D)
    query = queries.index(CONSUMER)
    load_query(query_ptr, stride_qp, first_p, P, query, D)

    total_count, first_count = 0, 0
    for r in range(R):
        _first, count = load_range(ranges_ptr, r)
        first_count = gl.where(first_count == 0, count, first_count)
        total_count += count

    out = zeros(BLOCK_P, D, OUT)
    if total_count > 0:
        wait_full(keys_full, 0)
        score = warpgroup_mma_wait(0, deps=[issue_scores(query, keys, 0)])
        run_ptx(READ_ARRIVE, KEYS_READ)
        valid = gl.arange(0, BLOCK_N, gl.SliceLayout(0, SCORES)) < first_count
        row_max = gl.max(gl.where(valid[None, :], score, -float("inf")), 1) * scale + HEADROOM
        weight = to_weights(zeros(BLOCK_P, BLOCK_N, SCORES), keys.dtype, D)
        total = sum_columns(zeros(BLOCK_P, BLOCK_N, SCORES))
        acc = warpgroup_mma_init(out)
        i = 0
        if CONSUMER == 1:
            run_ptx(PING_PONG_WAIT, PING_PONG + 1)
        for r in range(R):
            _first, count = load_range(ranges_ptr, r)
            whole = count // BLOCK_N
            for _pair in range(whole // 2):  # two blocks at a time, so that scores stay in their registers
                score, total, acc, weight, i = attend_block(
                    score, total, acc, weight, i, query, row_max, scale, smem_stages, CONSUMER
                )
                score, total, acc, weight, i = attend_block(
                    score, total, acc, weight, i, query, row_max, scale, smem_stages, CONSUMER
                )
            odd, rest = whole % 2, count % BLOCK_N
            for j in range(odd + (rest > 0).to(gl.int32)):
                last = j >= odd
                begin = gl.where(last & (whole > 0), BLOCK_N - rest, 0)
                end = gl.where(last & (whole == 0), rest, BLOCK_N)
                score, total, acc, weight, i = attend_partial_block(
                    score, total, acc, weight, i, query, row_max, scale, smem_stages, CONSUMER, begin, end
                )
        if CONSUMER == 0:
            run_ptx(PING_PONG_ARRIVE, PING_PONG + 1)
        out, weight = warpgroup_mma_wait(0, deps=[acc, weight])
        out = divide(out, gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, OUT)))
    offs_p = first_p + gl.arange(0, BLOCK_P, gl.SliceLayout(1, OUT))
    offs_d = gl.arange(0, D, gl.SliceLayout(0, OUT))
    out_ptrs = out_ptr + offs_p.to(gl.int64)[:, None] * stride_op + offs_d[None, :]
    gl.store(out_ptrs, out.to(keys.dtype), mask=(offs_p < P)[:, None])
    run_ptx(EXIT, 0)


@gluon.jit
def load_query(query_ptr, stride_qp, first_p, P, query, D: gl.constexpr):
    ROWS: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    offs_p = first_p + gl.arange(0, BLOCK_P, gl.SliceLayout(1, ROWS))
    offs_d = gl.arange(0, D, gl.SliceLayout(0, ROWS))
    ptrs = query_ptr + offs_p.to(gl.int64)[:, None] * stride_qp + offs_d[None, :]
    query.store(gl.load(ptrs, mask=(offs_p < P)[:, None], other=0.0))
    fence_async_shared()
    warpgroup_barrier()


@gluon.jit
def issue_scores(query, keys, i):
    BLOCK_N: gl.constexpr = keys.shape[1]
    unused = zeros(BLOCK_P, BLOCK_N, product_layout(BLOCK_N))
    return warpgroup_mma(query, keys.index(i % STAGES).permute((1, 0)), unused, use_acc=False, is_async=True)


@gluon.jit
def exp2(x):
    return gl.inline_asm_elementwise(EXP2, "=f,f", [x], gl.float32, True, 1)


@gluon.jit
def to_weights(x, DTYPE: gl.constexpr, D: gl.constexpr):
    # A product's result and a left operand have matching layouts, so no data moves.
    return gl.convert_layout(x.to(DTYPE), gl.DotOperandLayout(0, product_layout(D), 2))


@gluon.jit
def sum_columns(x):
    # Sums columns that are 8 apart, which are all in one thread. The threads' sums are combined once, after the last
    # block.
    return gl.sum(x.reshape([x.shape[0], x.shape[1] // 8, 8]), 1)


@gluon.jit
def attend_block(score, total, acc, weight, i, query, row_max, scale, smem_stages, CONSUMER: gl.constexpr):
    # Processes the whole block i. On entry, the consumer has the block's scores and the turn, and the product of block
    # i - 1's weights and values is in flight. On return, the same holds for block i + 1. A turn covers the product with
    # values i and the scores of block i + 2 (issued by the next call).
    keys, values, keys_full, values_full = smem_stages
    wait_full(keys_full, i + 1)
    next_score = issue_scores(query, keys, i + 1)
    run_ptx(PING_PONG_ARRIVE, PING_PONG + 1 - CONSUMER)
    x = exp2(gl.fma(score, scale, -row_max[:, None]))
    total += sum_columns(x)
    acc, weight = warpgroup_mma_wait(1, deps=[acc, weight])
    if i > 0:
        run_ptx(READ_ARRIVE, VALUES_READ + (i - 1) % STAGES)
    weight = to_weights(x, keys.dtype, keys.shape[2])
    wait_full(values_full, i)
    run_ptx(PING_PONG_WAIT, PING_PONG + CONSUMER)
    acc = warpgroup_mma(weight, values.index(i % STAGES), acc, is_async=True)
    score = warpgroup_mma_wait(1, deps=[next_score])
    run_ptx(READ_ARRIVE, KEYS_READ + (i + 1) % STAGES)
    return score, total, acc, weight, i + 1


@gluon.jit
def attend_partial_block(
    score, total, acc, weight, i, query, row_max, scale, smem_stages, CONSUMER: gl.constexpr, begin, end
):
    # Processes the slots from `begin` to `end` of block i, like attend_block but without overlapping computations.
    # Needed for at most two blocks per range.
    keys, values, keys_full, values_full = smem_stages
    BLOCK_N: gl.constexpr = keys.shape[1]
    run_ptx(PING_PONG_ARRIVE, PING_PONG + 1 - CONSUMER)
    out, weight = warpgroup_mma_wait(0, deps=[acc, weight])
    if i > 0:
        run_ptx(READ_ARRIVE, VALUES_READ + (i - 1) % STAGES)
    column = gl.arange(0, BLOCK_N, gl.SliceLayout(0, product_layout(BLOCK_N)))
    valid = (column >= begin) & (column < end)
    x = exp2(gl.where(valid[None, :], gl.fma(score, scale, -row_max[:, None]), -float("inf")))
    total += sum_columns(x)
    weight = to_weights(x, keys.dtype, keys.shape[2])
    wait_full(values_full, i)
    wait_full(keys_full, i + 1)
    if end < BLOCK_N:
        zero_rows_from(values.index(i % STAGES), end)
    run_ptx(PING_PONG_WAIT, PING_PONG + CONSUMER)
    acc = warpgroup_mma(weight, values.index(i % STAGES), warpgroup_mma_init(out), is_async=True)
    score = warpgroup_mma_wait(0, deps=[issue_scores(query, keys, i + 1)])
    run_ptx(READ_ARRIVE, KEYS_READ + (i + 1) % STAGES)
    return score, total, acc, weight, i + 1


@gluon.jit
def zero_rows_from(block, end):
    # Both consumers zero these rows of the block that they share; they write the same values.
    ROWS: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    for part in gl.static_range(block.shape[0] // 16):
        piece = block.slice(part * 16, 16, 0)
        row = part * 16 + gl.arange(0, 16, gl.SliceLayout(1, ROWS))
        piece.store(gl.where((row < end)[:, None], piece.load(ROWS), 0.0).to(block.dtype))
    fence_async_shared()
    warpgroup_barrier()


@gluon.jit
def divide(out, total):
    # The result is NaN for tokens with any overflow: in their weights, in the sum of weights, or in the products.
    out /= total[:, None]
    outside = gl.max(gl.where(gl.abs(out) < float("inf"), 0, 1), 1)
    good = (outside == 0) & (total > 0) & (total < float("inf"))
    return gl.where(good[:, None], out, float("nan"))
