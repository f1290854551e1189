"""Dtypes have torch's names, and only device failures are classified as such."""

import pytest
import torch

from retinad.pipeline.model.devices import is_device_failure, torch_dtype


def test_a_number_format_is_torchs_dtype_of_that_name() -> None:
    assert torch_dtype("bfloat16") is torch.bfloat16


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("CUDA error"), False),
    ],
)
def test_only_sticky_errors_end_the_process(error: Exception, failed: bool) -> None:
    assert is_device_failure(error) is failed
