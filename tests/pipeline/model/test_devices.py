"""Formats and presets are what their names say, and only a broken device is called broken."""

import pytest
import torch

from retinad.pipeline.model.devices import is_device_failure, torch_dtype
from retinad.pipeline.model.presets import PRESETS


def test_a_format_is_torchs_of_that_name() -> None:
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


def test_presets_are_read_only_and_consistent() -> None:
    assert set(PRESETS) == {"tiny", "lingbot-map"}
    for name, preset in PRESETS.items():
        assert preset.name == name
        assert preset.network.channels // preset.network.heads == 64
        assert preset.image_width % preset.network.patch_size == 0
        assert max(preset.layers) < preset.network.depth
    with pytest.raises(TypeError):
        PRESETS["other"] = PRESETS["tiny"]  # type: ignore[index]
