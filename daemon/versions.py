"""The versions of retinad and of the libraries below it, without importing them."""

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
    """Versions by the name of the distribution, `retinad` first; of what is not installed, nothing (but of retinad)."""
    found = {"retinad": "unknown", "python": platform.python_version()}
    for name in _PARTS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
