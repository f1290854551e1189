"""Settings of the pipeline's tests."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small lose more to handing work between threads than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the pipeline runs the kernels' references, also where the kernels' own tests chose Triton's interpreter.

    That takes minutes for a model, and rounds bfloat16 another way.
    """
    if find_spec("triton") is not None:
        import triton

        monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
