"""Settings of the pipeline tests."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """More threads would slow down work on tensors this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the kernels' PyTorch references on a CPU, even if the kernel tests have chosen Triton's interpreter.

    The interpreter takes minutes for a model, and rounds bfloat16 differently.
    """
    if find_spec("triton") is not None:
        import triton  # type: ignore[import-untyped,unused-ignore]  # no py.typed

        monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
