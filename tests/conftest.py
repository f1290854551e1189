"""Settings shared by all tests."""

import pytest

from .deadlines import SCALE, scaled


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Scale pytest's own timeouts like the deadlines inside the tests."""
    if SCALE == 1:
        return
    for item in items:
        marker = item.get_closest_marker("timeout")
        timeout_s = float(marker.args[0] if marker else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(scaled(timeout_s)), append=False)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        import torch  # the client's tests need none

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
