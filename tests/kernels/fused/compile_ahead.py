"""Compiles the fused kernels for Hopper without a device and prints what each uses.

`python -m tests.kernels.fused.compile_ahead`, outside Triton's interpreter.
"""

# mypy: disable-error-code="import-untyped"

from collections.abc import Iterator
from typing import Any

import triton

from retinad.kernels.fused import add_norm_triton, kv_copy_triton, preprocess_triton, qk_norm_rope_triton

from ..compiling import Case, bare, print_resources


def typed(kernel: Any, others: dict[str, Any], *, floats: str = "*fp32", numbers: str = "i32") -> dict[str, Any]:
    """Types of all arguments: those in `others`, and one type each for the remaining pointers and numbers."""
    kinds = {name: floats if name.endswith("_ptr") else numbers for name in kernel.arg_names}
    return kinds | others


def add_norm_cases() -> Iterator[Case]:
    kernel = add_norm_triton.add_norm_kernel
    for C, rows in ((256, 4), (384, 2), (1024, 1), (2048, 1)):
        others = {"branch_ptr": "*bf16", "out_ptr": "*bf16", "eps": "fp32", "C": C, "BLOCK_N": rows}
        arguments = typed(kernel, others | {"BLOCK_C": triton.next_power_of_2(C)})
        yield f"add_norm {C}", kernel, arguments, 8 if C == 2048 else 4
    yield "norm", kernel, bare(arguments, "branch_ptr", "gamma_ptr"), 8
    yield "add", kernel, bare(arguments, "weight_ptr", "bias_ptr", "out_ptr"), 8


def qk_norm_rope_cases() -> Iterator[Case]:
    kernel = qk_norm_rope_triton.qk_norm_rope_kernel
    for H, D, warps in ((16, 64, 2), (16, 128, 4), (6, 64, 1), (3, 20, 1)):
        for pairs in (True, False):
            blocks = {name: triton.next_power_of_2(n) for name, n in (("H", H), ("D", D), ("HD", H * D))}
            sizes = {"H": H, "D": D, "PAIRS": pairs} | {f"BLOCK_{name}": size for name, size in blocks.items()}
            pointers = {"packed_ptr": "*bf16", "query_ptr": "*bf16", "kv_cache_ptr": "*fp8e4nv", "slots_ptr": "*i64"}
            others = {"eps": "fp32", "stride_values": "i64", "LARGEST": 448.0}
            arguments = typed(kernel, pointers | others | sizes)
            yield f"qk_norm_rope {H} {D} {pairs}, append", kernel, arguments, warps
            arguments = bare(arguments, "query_ptr", "kv_cache_ptr", "slots_ptr")
            yield f"qk_norm_rope {H} {D} {pairs}, in place", kernel, arguments, warps


def byte_cases() -> Iterator[Case]:
    kernel = kv_copy_triton.copy_slots_kernel
    others = {"copies_ptr": "*i64", "stride_values": "i64", "ROW": 2048, "LANES": kv_copy_triton.LANES, "BLOCK": 2048}
    yield "copy_slots", kernel, typed(kernel, others, floats="*u8"), 4
    bytes_of = {"pixels_ptr": "*u8", "starts_ptr": "*i32", "BLOCK_E": preprocess_triton.BLOCK_E}
    kernel = preprocess_triton.columns_kernel
    yield "columns", kernel, typed(kernel, bytes_of | {"between_ptr": "*u8"}), 4
    kernel = preprocess_triton.rows_kernel
    for patch in (0, 14):
        yield f"rows {patch}", kernel, typed(kernel, bytes_of | {"out_ptr": "*bf16", "PATCH": patch}), 4


if __name__ == "__main__":
    print_resources([*add_norm_cases(), *qk_norm_rope_cases(), *byte_cases()])
