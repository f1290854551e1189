"""Compiles kernels for Hopper without a device, for programs that run outside Triton's interpreter, and their tests."""

# mypy: disable-error-code="import-untyped"

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ROOT = Path(__file__).parents[2]
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
Case = tuple[str, Any, dict[str, Any], int]
"""Name, kernel, arguments by name, number of warps."""


def run_program(arguments: list[str], cache: Path | None = None) -> list[str]:
    """Output lines of a Python program that runs with Triton's compiler instead of the interpreter."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    if cache is not None:
        environment["TRITON_CACHE_DIR"] = str(cache)
    run = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def compile_for_hopper(kernel: Any, arguments: dict[str, Any], num_warps: int) -> str:
    """Resources that `kernel` needs. Arguments are given by value (constants) or as one of Triton's types ("*fp32")."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], Any] = {}
    for i, name in enumerate(kernel.arg_names):
        value = arguments[name]
        if not isinstance(value, str):
            signature[name], constants[(i,)] = "constexpr", value
            continue
        signature[name] = value
        if value.startswith("*") or name.startswith("stride"):
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        usage = subprocess.run(
            [TOOLS / "cuobjdump", "--dump-resource-usage", cubin.name], capture_output=True, text=True, check=True
        ).stdout
    return " ".join(re.findall(r"(?:REG|STACK|SHARED|LOCAL):\d+", usage))


def print_resources(cases: list[Case]) -> None:
    """Print one line per case: its name and the resources of the compiled kernel."""
    for name, kernel, arguments, num_warps in cases:
        sys.stdout.write(f"{name}: {compile_for_hopper(kernel, arguments, num_warps)}\n")


def bare(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    """The arguments of a call, except the options in `names`."""
    return arguments | dict.fromkeys(names)
