"""Launches of Triton kernels that bind their arguments only once.

At every launch Triton inspects about thirty arguments to find the matching compiled kernel: 50 us on a machine where
one frame takes 40 us of device time. A caller that knows that the arguments are of the same kind as an earlier call's
(dtypes, 16-byte alignment of pointers, constants, which are None) keeps the compiled kernel instead.
"""

# mypy: disable-error-code="import-untyped"

from functools import cache
from typing import Any

from .tuning import Launch


class BoundKernel:
    """A kernel for one kind of arguments. `constants` are its last parameters, the tl.constexpr ones."""

    def __init__(self, kernel: Any, constants: tuple[Any, ...], launch: Launch) -> None:
        self._kernel = kernel
        self._constants = constants
        self._options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "maxnreg": launch.maxnreg}
        self._compiled: Any = None  # stays None in the interpreter

    def __call__(self, programs: int, *arguments: Any) -> None:
        """Launch `programs` programs on the current device and stream; the first call compiles."""
        if self._compiled is None:
            self._compiled = self._kernel[(programs,)](*arguments, *self._constants, **self._options)
        else:
            self._compiled[(programs, 1, 1)](*arguments, *self._constants)


@cache
def bound_kernel(kernel: Any, constants: tuple[Any, ...], launch: Launch, kind: tuple[Any, ...]) -> BoundKernel:
    """The BoundKernel of a kind. Calls with equal `kind` and `constants` must need the same compiled kernel."""
    return BoundKernel(kernel, constants, launch)
