"""The benchmarks run: what is measured by hand only would otherwise be found broken when it is needed."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent / "benchmarks"


def test_the_pipelines_benchmark_runs_and_every_frame_arrives() -> None:
    command = [sys.executable, str(BENCHMARKS / "pipeline.py"), "40"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if "model" in line]
    assert [row.split()[-4] for row in rows] == ["40", "40"]
