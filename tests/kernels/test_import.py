"""The kernels' package imports anywhere: without warnings, without triton, without a device."""

import subprocess
import sys

BLOCKED = """
import sys
sys.modules["triton"] = None
import torch
from retinad.kernels.fused import add, copy_slots, qk_norm_rope
from retinad.kernels.kda import chunk_kda, fused_recurrent_kda
from retinad.kernels.kda.conv import short_convolution
x = torch.ones(1, 3, 1, 4)
for attention in (chunk_kda, fused_recurrent_kda):
    attention(x, x, x, -x, x[..., 0], output_final_state=True)
short_convolution(x[:, :, 0], torch.ones(4, 1, 4))
add(x[0, :, 0], x[0, :, 0], torch.ones(4))
copy_slots(torch.ones(2, 3, 1, 4), torch.tensor([[0, 1, 1]]))
qk_norm_rope(torch.ones(1, 2, 3, 1, 4), None, None, query=torch.ones(1, 2, 1, 4))
"""
UNTOUCHED = """
import sys
import retinad.kernels.fused
import retinad.kernels.kda
assert "triton" not in sys.modules
"""


def run(program: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False, timeout=50
    )
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def test_works_without_triton() -> None:
    assert run(BLOCKED) == ""


def test_importing_leaves_triton_alone() -> None:
    """Triton selects its interpreter at import, and importing the package must not make that choice."""
    assert run(UNTOUCHED) == ""
