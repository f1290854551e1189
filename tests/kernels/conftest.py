"""Chooses where kernels run in tests: on a CUDA device if there is one, else on the CPU in Triton's interpreter.

Triton reads this setting when it is imported, so it is made here, before any test imports a kernel.
"""

import os
import sys

import pytest
import torch

if not torch.cuda.is_available():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise pytest.UsageError(
            "triton was imported before its interpreter could be chosen: run with TRITON_INTERPRET=1"
        )
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
