"""The instruments of the soak tests: a slope that ignores outliers, and the resources of a process from /proc."""

import os
import secrets
import subprocess
import sys

import numpy as np
import pytest

from .measure import command_of, p99, processes_with, sample, slope_per_hour


def test_outliers_do_not_move_the_slope() -> None:
    at_s = np.arange(0.0, 600.0, 2.0)
    values = 100 + at_s * (3 / 3600)
    values[::5] += 50  # a fifth of the samples, spread over the whole range
    assert slope_per_hour(at_s.tolist(), values.tolist()) == pytest.approx(3, abs=1e-6)


def test_a_step_in_the_first_samples_is_not_a_slope() -> None:
    at_s = np.arange(0.0, 600.0, 2.0)
    values = np.where(at_s < 30, 90.0, 100.0)
    assert slope_per_hour(at_s.tolist(), values.tolist()) == 0


def test_one_percent_of_values_are_above_p99() -> None:
    assert sum(value > p99(range(1000)) for value in range(1000)) == 10


def test_a_process_is_measured() -> None:
    """Not this process: earlier tests may have left garbage in it that is not yet collected."""
    process = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    found = sample(process.pid)
    process.communicate()
    assert 1 < found.private_mb < found.resident_mb < 100_000
    assert found.threads >= 1
    assert found.descriptors >= 3
    assert found.frame_maps == 0


def test_a_process_is_found_by_its_environment_until_it_ends() -> None:
    command, token = [sys.executable, "-c", "input()"], secrets.token_hex(8)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | {"SOAK_RUN": token})
    assert processes_with(f"SOAK_RUN={token}") == [process.pid]
    assert command_of(process.pid) == command
    process.communicate()
    assert processes_with(f"SOAK_RUN={token}") == []
    assert command_of(process.pid) == []
