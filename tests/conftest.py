"""Shared settings of all tests."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        import torch  # the client's tests need none

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
