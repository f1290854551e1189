"""Every kernel of the package compiles for Hopper and keeps its numbers in registers."""

from pathlib import Path

import pytest

from ..compiling import run_program

SPECIALISED = """
from retinad.kernels.fused.add_norm_triton import add_norm_kernel
from retinad.kernels.fused.kv_copy_triton import copy_slots_kernel
from retinad.kernels.fused.qk_norm_rope_triton import qk_norm_rope_kernel
for kernel in (copy_slots_kernel, qk_norm_rope_kernel, add_norm_kernel):
    print(*(x.name for x in kernel.params if not (x.is_constexpr or x.do_not_specialize or x.name.endswith("_ptr"))))
"""


def test_other_sizes_of_the_cache_or_of_images_compile_nothing() -> None:
    """Triton compiles separately for numbers that are multiples of 16, and T, P and N may be either from camera to
    camera. The numbers that remain are multiples of the channels, and divisible by 16 in every network."""
    lines = run_program(["-c", SPECIALISED])
    assert lines == ["stride_values", "stride_values stride_table eps", "stride_xf stride_of eps"]


@pytest.mark.timeout(300)  # 7 s of compiling on an idle machine
def test_compiles_for_hopper_without_spilling(tmp_path: Path) -> None:
    """In a separate process, because the interpreter replaces the compiler; no device is needed."""
    lines = run_program(["-m", "tests.kernels.fused.compile_ahead"], tmp_path)
    assert len(lines) == 26
    for line in lines:
        assert "STACK:0" in line, line
        assert "LOCAL:0" in line, line
