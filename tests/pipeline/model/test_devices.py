"""Dtypes have torch's names, and only device failures are classified as such."""

import pytest
import torch

from retinad.pipeline.config import ModelConfig
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.open import open_engine
from retinad.pipeline.errors import DeviceError, ModelError
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


TORCH_WORDS = [
    "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable "
    "CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero.",
    "CUDA driver initialization failed, you might not have a CUDA gpu.",
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that "
    "might have already set an error? Error 802: system not yet initialized",
    "No CUDA GPUs are available",
]


@pytest.mark.parametrize("text", TORCH_WORDS)
def test_a_device_that_does_not_start_is_a_failure_that_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def engine(config: ModelConfig) -> Engine:
        raise RuntimeError(text)

    monkeypatch.setattr("retinad.pipeline.engine.open.Engine", engine)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    with pytest.raises(DeviceError, match=r"^cuda:0 failed: ") as caught:
        open_engine(ModelConfig(device="cuda:0"))
    assert text in str(caught.value)


@pytest.mark.parametrize("text", ["The NVIDIA driver on your system is too old (found version 11000).\nPlease update"])
def test_a_device_that_cannot_start_as_installed_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def engine(config: ModelConfig) -> Engine:
        raise RuntimeError(text)

    monkeypatch.setattr("retinad.pipeline.engine.open.Engine", engine)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    expected = r"^cuda:0 cannot be used: The NVIDIA driver .* \(found version 11000\)\.$"
    with pytest.raises(ModelError, match=expected) as caught:
        open_engine(ModelConfig(device="cuda:0"))
    assert not isinstance(caught.value, DeviceError)
