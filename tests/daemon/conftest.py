"""Keeps the tests of the daemon out of the user's own folders."""

from pathlib import Path

import pytest

from retinad.daemon.kernel_cache import VARIABLES


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let commands keep kernels in a folder of the test, and restore the variables that they set in this process."""
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path / "cache"))
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # counts as not set; the old value is restored after the test
