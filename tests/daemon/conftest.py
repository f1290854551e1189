"""Keeps the tests of the daemon out of the user's own folders."""

from pathlib import Path

import pytest

from retinad.daemon.kernel_cache import VARIABLES


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands keep kernels in a folder of the test's, and those that run in this process leave no variable behind."""
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path / "cache"))
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # counts as not set; what was there comes back after the test
