"""Fixtures of the client's tests."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from .fake_service import FakeService, fake_service


@pytest.fixture
def service() -> Iterator[FakeService]:
    with fake_service() as opened:
        yield opened


@pytest.fixture
def open_service() -> Callable[..., AbstractContextManager[FakeService]]:
    """Opens a fake service at an endpoint of the test's choice."""
    return fake_service
