"""Compiles the Hopper kernel without a device and prints what ptxas reports, outside Triton's interpreter.

A warning C75xx means that the kernel waits for every matrix product, which halves its speed without failing a test.
"""

# mypy: disable-error-code="import-untyped"

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from retinad.kernels.attention import ranges_gluon_sm90

PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float8_e4m3fn: "fp8e4nv"}
CASES = [
    (64, torch.bfloat16, torch.bfloat16),
    (64, torch.float16, torch.float16),
    (64, torch.bfloat16, torch.float8_e4m3fn),
    (128, torch.bfloat16, torch.bfloat16),
    (128, torch.float16, torch.float8_e4m3fn),
]


def ptx_of(D: int, query: torch.dtype, kv_cache: torch.dtype) -> str:
    """The kernel for 16 heads of D channels, with aligned pointers and strides."""
    kernel = ranges_gluon_sm90.ranges_sm90_kernel
    block = [ranges_gluon_sm90.block_n(D), D]
    layout = gl.NVMMASharedLayout.get_default_for(block, ranges_gluon_sm90.GLUON_DTYPES[kv_cache])
    desc = f"tensordesc<{NAMES[kv_cache]}{block},{layout!r}>"
    constants = {"H": 16, "HEADROOM": ranges_gluon_sm90.headroom(query)}
    signature = dict.fromkeys(kernel.arg_names, "i32") | dict.fromkeys(("query_ptr", "out_ptr"), f"*{NAMES[query]}")
    signature |= {"key_desc": desc, "value_desc": desc, "ranges_ptr": "*i32", "scale": "fp32"}
    signature |= dict.fromkeys(constants, "constexpr")
    positions = {name: i for i, name in enumerate(kernel.arg_names)}
    aligned = [name for name in positions if name.endswith("_ptr") or name.startswith("stride")]
    source = GluonASTSource(
        kernel,
        signature,
        {(positions[name],): value for name, value in constants.items()},
        {(positions[name],): [["tt.divisibility", 16]] for name in aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    return str(compiled.asm["ptx"])


def report_of(ptx: str) -> str:
    """Spilled bytes, and warnings about serialised matrix products."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [str(PTXAS), "-v", "--gpu-name", "sm_90a", file.name, "-o", "/dev/null"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return " ".join(re.findall(r"\d+ bytes spill stores|C75\d\d", report))


if __name__ == "__main__":
    for D, query, kv_cache in CASES:
        sys.stdout.write(f"{D} {query} {kv_cache}: {report_of(ptx_of(D, query, kv_cache))}\n")
