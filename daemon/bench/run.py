"""`retinad bench`: measures the model and the service on this machine, with synthetic cameras."""

import os
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console

from retinad.pipeline.engine.device_usage import gpu_name
from retinad.pipeline.errors import DeviceError, ModelError, PublishError

from ..exit_codes import ExitCode
from ..logs.redact import Redactor
from ..logs.setup import open_log
from ..versions import find_versions
from .end_to_end import Measured, measure
from .plan import BenchPlan
from .results import (
    BenchError,
    BenchReport,
    BenchSettings,
    Machine,
    ModelSettings,
    OutputSettings,
    Workload,
    read_report,
    write_report,
)
from .table import print_comparison, print_report


def bench(plan: BenchPlan, json_file: Path | None, compare: Path | None) -> ExitCode:
    """Measure, and print the report.

    Args:
        plan: what to measure.
        json_file: where to write the report, or None.
        compare: the report of an earlier run to compare with, or None.

    Returns:
        OK, UNAVAILABLE if the measurement failed, or FAULT if the device failed. The reason is printed to standard
        error.
    """
    console = Console(highlight=False)
    try:
        before = None if compare is None else read_report(compare)
        report = run_bench(plan)
        print_report(report, console)
        if before is not None:
            print_comparison(before, report, console)
        if json_file is not None:
            write_report(report, json_file)
    except DeviceError as error:
        return _fail(f"the device failed: {error}", ExitCode.FAULT)
    except (BenchError, ModelError, PublishError) as error:
        return _fail(str(error), ExitCode.UNAVAILABLE)
    return ExitCode.OK


def run_bench(plan: BenchPlan) -> BenchReport:
    """Measure the engine alone, then the path from cameras to a subscriber. Warnings go to standard error.

    Raises:
        BenchError: the run was interrupted, or there was nothing to measure.
        ModelError, DeviceError, PublishError: raised by `serve`.
    """
    with open_log(Redactor()) as log, tempfile.TemporaryDirectory(prefix="retinad-bench-") as folder:
        log.configure("warning", "console")
        config = plan.service(Path(folder))
        measured = measure(plan, config)
    return BenchReport(_settings(plan, measured), _machine(measured), measured.engine, measured.path)


def _fail(reason: str, code: ExitCode) -> ExitCode:
    Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(f"retinad: {reason}")
    return code


def _settings(plan: BenchPlan, measured: Measured) -> BenchSettings:
    model, output = plan.config.model, plan.config.model.output
    return BenchSettings(
        model=ModelSettings(
            model=model.name,
            weights=measured.model.weights,
            device=model.device,
            dtype=model.dtype,
            attention=measured.model.attention,
            mixers=measured.model.mixers,
            network=model.network,
            image_width=model.image_width,
            max_batch=model.max_batch,
        ),
        output=OutputSettings(layers=output.layers, tokens=tuple(output.tokens), output_dtype=output.dtype),
        workload=Workload(
            cameras=plan.cameras,
            size=plan.size,
            steps=plan.steps,
            window_full=plan.window_full,
            stream=plan.stream,
            fps=plan.fps,
        ),
    )


def _machine(measured: Measured) -> Machine:
    gpu = gpu_name(measured.model.device)
    return Machine(
        versions=find_versions(),
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        gpu=gpu,
        driver=None if gpu is None else _driver(),
    )


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else os.uname().machine


def _driver() -> str:
    """The version of NVIDIA's driver, which torch does not provide."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found[0] if found else "unknown"
