"""Every kernel of the package compiles for Hopper and keeps its numbers in registers."""

import os
import subprocess
import sys
from pathlib import Path


def test_compiles_for_hopper_without_spilling(tmp_path: Path) -> None:
    """In a process of its own, because the interpreter replaces the compiler; no device is needed."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    program = Path(__file__).with_name("compile_block.py")
    run = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 26
    for line in run.stdout.splitlines():
        assert "STACK:0" in line, line
        assert "LOCAL:0" in line, line
