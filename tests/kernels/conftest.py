"""Kernels in tests run on a CUDA device if there is one, otherwise on the CPU in Triton's interpreter.

Triton decides at import, so the choice is made here, before a test imports a kernel.
"""

import os
import sys

import pytest
import torch

from .guards import WithoutTriton

if not torch.cuda.is_available():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise pytest.UsageError(
            "triton was imported before its interpreter could be selected: run with TRITON_INTERPRET=1"
        )
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def without_triton(monkeypatch: pytest.MonkeyPatch) -> WithoutTriton:
    """Makes a wrapper's module compute in PyTorch, as where Triton cannot run."""
    return lambda wrapper: monkeypatch.setattr(sys.modules[wrapper.__module__], "runs_triton", lambda device: False)
