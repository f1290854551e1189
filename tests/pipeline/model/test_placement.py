"""A configured device and number format resolve to one name each."""

import re

import pytest
import torch

from retinad.pipeline.errors import ModelError
from retinad.pipeline.model.placement import resolve_device, resolve_dtype


def test_auto_without_a_gpu_is_the_cpu_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == "cpu"
    assert resolve_dtype("auto", "cpu") == "float32"


def test_auto_with_gpus_is_the_first_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == resolve_device("cuda") == "cuda:0"
    assert resolve_device("cuda:1") == "cuda:1"
    assert resolve_dtype("auto", "cuda:0") == "bfloat16"
    with pytest.raises(ModelError, match="sees 2 CUDA devices"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", "mps", ""])
def test_an_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(ModelError, match="device must be auto, cpu or cuda"):
        resolve_device(device)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ModelError, match="got 'float8'"):
        resolve_dtype("float8", "cpu")


@pytest.mark.parametrize(
    ("error", "starts"),
    [
        (RuntimeError("CUDA unknown error - this may be due to an incorrectly set up environment"), False),
        (RuntimeError("CUDA driver initialization failed, you might not have a CUDA gpu."), False),
        (RuntimeError("The NVIDIA driver on your system is too old (found version 11000)."), False),
        (RuntimeError("Found no NVIDIA driver on your system."), True),
        (RuntimeError("No CUDA GPUs are available"), True),
        (AssertionError("Torch not compiled with CUDA enabled"), True),
    ],
)
def test_auto_does_not_fall_back_to_the_cpu_from_a_gpu_that_does_not_start(
    monkeypatch: pytest.MonkeyPatch, error: Exception, starts: bool
) -> None:
    def init() -> None:
        raise error

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    if starts:
        assert resolve_device("auto") == "cpu"
        return
    for device in ("auto", "cuda"):
        with pytest.raises(ModelError, match=re.escape(str(error))):
            resolve_device(device)
