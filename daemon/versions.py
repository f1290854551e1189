"""Finds the versions of retinad and its libraries without importing them, and knows which are tested on a GPU."""

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

_PARTS = (
    "retinad",
    "pyzmq",
    "msgspec",
    "numpy",
    "torch",
    "opencv-python-headless",
    "anyio",
    "triton",
    "flashinfer-python",
)

TESTED_ON_GPU = (("2.11", "3.6"), ("2.11", "3.7"))
"""Pairs of torch and Triton minor versions that passed all GPU tests; `constraints-gpu.txt` installs the first pair."""


def find_versions() -> dict[str, str]:
    """Versions by distribution name, `retinad` first. Libraries that are not installed are left out."""
    found = {"retinad": "unknown", "python": platform.python_version()}
    for name in _PARTS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def untested_on_gpu(versions: Mapping[str, str]) -> bool:
    """Whether these versions of torch and Triton are a pair without GPU tests.

    Args:
        versions: as returned by `find_versions`; local parts of a version (`+cu130`) are ignored.
    """
    pair = tuple(".".join(versions.get(name, "").split(".")[:2]) for name in ("torch", "triton"))
    return pair not in TESTED_ON_GPU
