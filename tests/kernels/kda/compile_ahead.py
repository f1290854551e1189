"""Compiles the delta attention kernels for Hopper without a device and prints what each uses.

`python -m tests.kernels.kda.compile_ahead`, outside Triton's interpreter.
"""

# mypy: disable-error-code="import-untyped"

from collections.abc import Iterator
from typing import Any

import triton

from retinad.kernels.kda import conv_triton, gated_norm_triton, recurrent_triton, state_pool_triton

from ..compiling import Case, bare, print_resources

SIZES = [(64, 64), (100, 60), (128, 128), (256, 256)]


def recurrent_cases() -> Iterator[Case]:
    kernel = recurrent_triton.recurrent_kernel
    floats = dict.fromkeys(("A_log_ptr", "dt_bias_ptr", "read_ptr", "written_ptr"), "*fp32")
    ints = dict.fromkeys(("cu_seqlens_ptr", "read_slots_ptr", "written_slots_ptr"), "*i32")
    for K, V in SIZES:
        for dtype in ("bf16",) if K < 128 else ("bf16", "fp32"):
            for v_first in (False, True):
                tokens = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "g_ptr", "beta_ptr", "o_ptr"), f"*{dtype}")
                block_k, block_v = recurrent_triton.block_sizes(K, V)
                others: dict[str, Any] = {
                    "scale": "fp32", "lower_bound": "fp32", "T": "i32", "H": 16, "HV": 16, "K": K, "V": V,
                    "BLOCK_K": block_k, "BLOCK_V": block_v, "USE_GATE": True, "USE_L2NORM": True, "BETA_FACTOR": 1,
                    "STATE_V_FIRST": v_first,
                }  # fmt: skip
                strides = {name: "i32" for name in kernel.arg_names if name.startswith("stride")}
                yield f"recurrent {K} {V} {dtype} {v_first}", kernel, tokens | floats | ints | others | strides, 1
    plain = {"USE_GATE": False, "USE_L2NORM": False, "BETA_FACTOR": 0}
    yield "recurrent, bare", kernel, bare(tokens | others | strides | plain, *floats, *ints, "lower_bound"), 1


def convolution_cases() -> Iterator[Case]:
    kernel = conv_triton.convolution_kernel
    pointers = {name: "*i32" if "slots" in name or "cu_" in name else "*bf16" for name in kernel.arg_names}
    numbers = {name: "i32" for name in kernel.arg_names if not name.endswith("_ptr")}
    blocks = {"D": 3072, "BLOCK_T": conv_triton.BLOCK_T, "BLOCK_D": conv_triton.BLOCK_D}
    arguments = pointers | numbers | blocks
    yield kernel.__name__, kernel, arguments, 4
    options = ("read_slots_ptr", "written_slots_ptr", "states_ptr", "written_ptr", "cu_seqlens_ptr")
    yield f"{kernel.__name__}, bare", kernel, bare(arguments, *options), 4


def scatter_cases() -> Iterator[Case]:
    pointers = {"states_ptr": "*fp32", "final_ptr": "*fp32", "read_ptr": "*i32", "written_ptr": "*i64"}
    sizes = {"stride_states": "i32", "ROW": 16 * 64 * 64, "BLOCK": state_pool_triton.BLOCK}
    yield "scatter_kernel", state_pool_triton.scatter_kernel, pointers | sizes, 4


def norm_cases() -> Iterator[Case]:
    pointers = {"x_ptr": "*bf16", "gate_ptr": "*bf16", "weight_ptr": "*fp32", "bias_ptr": "*bf16", "y_ptr": "*bf16"}
    numbers = {"rows": "i32", "stride_xt": "i32", "stride_gt": "i32", "eps": "fp32"}
    for V in (64, 100, 256):
        block_v = triton.next_power_of_2(V)
        sizes = {"HV": 16, "V": V, "BLOCK_N": gated_norm_triton.BLOCK // block_v, "BLOCK_V": block_v}
        yield f"gated_norm_kernel {V}", gated_norm_triton.gated_norm_kernel, pointers | numbers | sizes, 8


if __name__ == "__main__":
    print_resources([*recurrent_cases(), *convolution_cases(), *scatter_cases(), *norm_cases()])
