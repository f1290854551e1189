"""Runs a benchmark, so that one that is otherwise run by hand does not break unnoticed."""

import subprocess
import sys
from pathlib import Path

from .deadlines import scaled

BENCHMARKS = Path(__file__).parent / "benchmarks"


def test_the_pipeline_benchmark_runs_and_receives_every_frame() -> None:
    command = [sys.executable, str(BENCHMARKS / "pipeline.py"), "40"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=scaled(55), check=False)
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if "model" in line]
    assert [row.split()[-4] for row in rows] == ["40", "40"]
