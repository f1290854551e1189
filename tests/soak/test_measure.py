"""The soak's own instruments: a slope that wild samples do not move, and a process as /proc has it."""

import os
import subprocess
import sys

import numpy as np
import pytest

from .measure import command_of, p99, processes_with, sample, slope_per_hour


def test_the_slope_is_that_of_most_samples() -> None:
    at_s = np.arange(0.0, 600.0, 2.0)
    values = 100 + at_s * (3 / 3600)
    values[::5] += 50  # a fifth of them, and not at one end only
    assert slope_per_hour(at_s.tolist(), values.tolist()) == pytest.approx(3, abs=1e-6)


def test_a_step_in_the_first_samples_is_no_slope() -> None:
    at_s = np.arange(0.0, 600.0, 2.0)
    values = np.where(at_s < 30, 90.0, 100.0)
    assert slope_per_hour(at_s.tolist(), values.tolist()) == 0


def test_one_in_a_hundred_is_above_p99() -> None:
    assert sum(value > p99(range(1000)) for value in range(1000)) == 10


def test_a_process_is_found_and_measured() -> None:
    """Another one: in this one, tests that ran before may have left something that waits to be collected."""
    process = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    there = sample(process.pid)
    process.communicate()
    assert 1 < there.private_mb < there.resident_mb < 100_000
    assert there.threads >= 1
    assert there.descriptors >= 3
    assert there.frame_maps == 0


def test_a_process_is_found_by_what_it_was_given_until_it_is_gone() -> None:
    command = [sys.executable, "-c", "input()"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | {"SOAK_RUN": "found"})
    assert processes_with("SOAK_RUN=found") == [process.pid]
    assert command_of(process.pid) == command
    process.communicate()
    assert processes_with("SOAK_RUN=found") == []
    assert command_of(process.pid) == []
