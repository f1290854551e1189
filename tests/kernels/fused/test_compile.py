"""Every kernel of the package compiles for Hopper and keeps its numbers in registers."""

import os
import subprocess
import sys
from pathlib import Path

SPECIALISED = """
from retinad.kernels.fused import moves_triton, rotary_triton, sums_triton
for kernel in (moves_triton.evict_kernel, rotary_triton.qk_norm_rope_kernel, sums_triton.add_norm_kernel):
    print(*(x.name for x in kernel.params if not (x.is_constexpr or x.do_not_specialize or x.name.endswith("_ptr"))))
"""


def test_nothing_is_compiled_anew_for_another_size_of_the_memory_or_of_pictures() -> None:
    """Triton compiles for numbers that 16 divides and for others: T, P and N are either from camera to camera. What is
    left is a multiple of the channels, and divided by 16 in every network."""
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    run = subprocess.run(
        [sys.executable, "-c", SPECIALISED], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == ["stride_values", "stride_values stride_table eps", "stride_xf stride_of eps"]


def test_compiles_for_hopper_without_spilling(tmp_path: Path) -> None:
    """In a process of its own, because the interpreter replaces the compiler; no device is needed."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    program = Path(__file__).with_name("compile_fused.py")
    run = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 26
    for line in run.stdout.splitlines():
        assert "STACK:0" in line, line
        assert "LOCAL:0" in line, line
