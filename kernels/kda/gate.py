"""Triton device functions for a token's raw inputs: the gate's log decay, the sigmoid, and the scaling to unit length.

reference.py defines the same functions in PyTorch.
"""

# Triton's arguments have no Python types: a pointer is whatever the launcher passes.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"

import triton
import triton.language as tl

# The smallest log decay. exp(-104) is 0 in float32, so this limit changes no result, but it keeps -inf out of sums and
# differences.
MIN_LOG_DECAY = tl.constexpr(-104.0)


@triton.jit
def sigmoid(x):
    # Computes 1 / y, with y >= 1, as rsqrt(y)^2: two instructions, exact to within 3e-7. A division takes eight.
    root = tl.rsqrt(1.0 + tl.exp2(-1.4426950408889634 * x))
    return root * root


@triton.jit
def gate_rate(A_log_ptr, hv):
    """exp(A_log) of a value head, or 1 without A_log."""
    rate = 1.0
    if A_log_ptr is not None:
        rate = tl.exp(tl.load(A_log_ptr + hv).to(tl.float32))
    return rate


@triton.jit
def gate(g, rate, lower_bound):
    """-rate softplus(g), or, with a lower bound, lower_bound sigmoid(rate g). g is float32 and includes dt_bias."""
    if lower_bound is None:
        g = -rate * (tl.maximum(g, 0.0, propagate_nan=tl.PropagateNan.ALL) + tl.log(1.0 + tl.exp(-tl.abs(g))))
    else:
        g = lower_bound * sigmoid(rate * g)
    return g


@triton.jit
def log_decay(g, A_log_ptr, dt_bias_ptr, lower_bound, hv, offs_k, mask_k, K: tl.constexpr):
    """The gate's log decay for a [C, BLOCK_K] float32 tile: -exp(A_log) softplus(g + dt_bias), or, with a lower bound,
    lower_bound sigmoid(exp(A_log) (g + dt_bias))."""
    if dt_bias_ptr is not None:
        g += tl.load(dt_bias_ptr + hv * K + offs_k, mask=mask_k, other=0.0).to(tl.float32)[None, :]
    return gate(g, gate_rate(A_log_ptr, hv), lower_bound)


@triton.jit
def floor_log_decay(g):
    return tl.where(g < MIN_LOG_DECAY, MIN_LOG_DECAY, g)


@triton.jit
def unit_rows(x):
    """The rows of a [C, BLOCK_K] float32 tile, scaled to unit length."""
    return x * tl.rsqrt(tl.sum(x * x, 1) + 1e-6)[:, None]
