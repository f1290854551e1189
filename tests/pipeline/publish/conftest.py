"""Fixtures of the publisher's tests."""

from pathlib import Path

import pytest

from .rig import Keys


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)
