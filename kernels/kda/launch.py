"""Launches Triton kernels, but lets Triton find the matching compiled kernel only once per kind of arguments.

At every launch, Triton inspects about thirty arguments to find the matching compiled kernel. That took 50 us on a
machine where one frame takes 40 us of device time. If a caller knows that the arguments are of the same kind as those
of an earlier call (the same dtypes, 16-byte alignment of pointers, constants, and arguments that are None), it can use
the kernel that was found then.
"""

# mypy: disable-error-code="import-untyped"

from functools import cache
from typing import Any

from .tuning import Launch


class BoundKernel:
    """A kernel for one kind of arguments. `constants` are the values of its last parameters, which are tl.constexpr."""

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
    """The BoundKernel for a kind of arguments. Equal `kind` and `constants` must imply the same compiled kernel."""
    return BoundKernel(kernel, constants, launch)
