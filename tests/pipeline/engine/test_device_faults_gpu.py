"""On a GPU: its real errors are classified, and memory that ran out is available to the next frame."""

import subprocess
import sys

import pytest
import torch

from retinad.pipeline.engine.device_faults import DeviceFaults

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

BROKEN = """
import torch
from retinad.pipeline.engine.device_faults import DeviceFaults
from retinad.pipeline.errors import DeviceError
table = torch.zeros(4, device="cuda")
try:
    table[torch.tensor([9], device="cuda")].sum().item()
except RuntimeError as error:
    seen = error
for error in (seen, RuntimeError("plan failed")):
    try:
        DeviceFaults("cuda:0").run_failed(error)
    except DeviceError as fault:
        print(fault)
"""


def test_a_sticky_error_is_the_devices_under_any_name() -> None:
    """In a process of its own, whose device cannot be used afterwards."""
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, timeout=50, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("cuda:0 failed: CUDA error: device-side assert")
    assert second.endswith("(first seen as: plan failed)")


def overfill(free_bytes: int) -> None:
    held = torch.empty(free_bytes // 2, dtype=torch.uint8, device="cuda")
    torch.empty(free_bytes, dtype=torch.uint8, device=held.device)


def test_memory_that_ran_out_is_available_again() -> None:
    torch.cuda.empty_cache()
    free_bytes = torch.cuda.mem_get_info()[0]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        overfill(free_bytes)
    error = caught.value
    del caught
    DeviceFaults("cuda:0").run_failed(error)
    assert torch.cuda.mem_get_info()[0] > 0.95 * free_bytes
