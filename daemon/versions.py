"""Finds the versions of retinad and of its libraries, without importing them."""

import platform
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


def find_versions() -> dict[str, str]:
    """Versions by distribution name, `retinad` first. Libraries that are not installed are left out."""
    found = {"retinad": "unknown", "python": platform.python_version()}
    for name in _PARTS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
