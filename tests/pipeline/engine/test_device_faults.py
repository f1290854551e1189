"""Running out of memory is temporary and frees what was held; sticky or repeated errors end the process."""

import weakref

import pytest
import torch

from retinad.pipeline.config import ResizeMode, StreamConfig
from retinad.pipeline.engine.device_faults import MOST_IN_A_ROW, DeviceFaults
from retinad.pipeline.engine.engine import Engine
from retinad.pipeline.engine.model_runner import Batch, ModelRunner, WhileDeviceBusy
from retinad.pipeline.errors import DeviceError
from retinad.pipeline.frames import Features
from retinad.pipeline.model.devices import is_device_failure, is_out_of_memory

from .engine_rig import CONFIG, frame


@pytest.mark.parametrize(
    ("error", "fatal", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), False, True),
        (MemoryError(), False, True),
        (torch.AcceleratorError("CUDA error: out of memory"), False, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), False, True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), False, True),
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), True, False),
        (RuntimeError("CUDA error: device-side assert triggered"), True, False),
        (RuntimeError("Triton Error [CUDA]: misaligned address"), True, False),
        (RuntimeError("run failed with error an illegal memory access was encountered"), True, False),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False, False),
        (ValueError("CUDA error: said an image"), False, False),
    ],
    ids=str,
)
def test_errors_are_classified(error: Exception, fatal: bool, memory: bool) -> None:
    assert (is_device_failure(error), is_out_of_memory(error)) == (fatal, memory)


def fail_with_a_tensor(refs: "list[weakref.ref[torch.Tensor]]") -> None:
    held = torch.zeros(10)
    refs.append(weakref.ref(held))
    try:
        raise ValueError("first")
    except ValueError as error:
        raise torch.OutOfMemoryError("CUDA out of memory") from error


def test_tensors_of_a_run_that_ran_out_of_memory_are_freed_at_once() -> None:
    """A log may keep the error, which would keep all tensors of all its stack frames alive."""
    refs: list[weakref.ref[torch.Tensor]] = []
    with pytest.raises(torch.OutOfMemoryError) as caught:
        fail_with_a_tensor(refs)
    kept = caught.value
    del caught
    assert refs[0]() is not None
    DeviceFaults("cpu").run_failed(kept)
    assert refs[0]() is None


def test_consecutive_failures_of_one_kind_end_it_unless_a_success_intervenes() -> None:
    faults = DeviceFaults("cpu")
    for _ in range(3):
        for _ in range(MOST_IN_A_ROW - 1):
            faults.run_failed(RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"))
        faults.run_succeeded()
    for number in range(2 * MOST_IN_A_ROW):
        faults.run_failed(KeyError("x") if number % 2 else ValueError("y"))
    for _ in range(MOST_IN_A_ROW - 1):
        faults.run_failed(ValueError("z"))
    with pytest.raises(DeviceError, match="5 runs in a row failed, ValueError: z"):
        faults.run_failed(ValueError("z"))


def test_unusable_images_are_not_the_devices_fault() -> None:
    faults = DeviceFaults("cpu")
    for _ in range(3 * MOST_IN_A_ROW):
        faults.check(ValueError("too thin"))


def test_an_error_that_cuda_repeats_is_the_devices_whatever_its_first_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def repeat(device: str) -> None:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "synchronize", repeat)
    with pytest.raises(DeviceError, match=r"unspecified launch failure \(first seen as: plan failed\)"):
        DeviceFaults("cuda:0").run_failed(RuntimeError("plan failed"))


def test_a_device_error_remains_one() -> None:
    with pytest.raises(DeviceError, match="gone"):
        DeviceFaults("cpu").check(DeviceError("gone"))


def test_later_frames_that_always_fail_end_it_even_if_first_blocks_succeed_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream is reset after a failure, so with one camera every second run is a first block."""
    with Engine(CONFIG) as engine:
        engine.open_stream("a", StreamConfig(1, 2), ResizeMode.CROP)
        run = ModelRunner.run

        def fail_later(
            forward: ModelRunner, batch: Batch, started_ns: int, while_device_busy: WhileDeviceBusy | None = None
        ) -> list[Features]:
            if not batch[0].stream.starting:
                raise ValueError("injected")
            return run(forward, batch, started_ns, while_device_busy)

        monkeypatch.setattr(ModelRunner, "run", fail_later)
        for number in range(2 * MOST_IN_A_ROW - 1):
            engine.step([frame("a", number)])
        with pytest.raises(DeviceError, match="5 runs in a row failed, ValueError: injected"):
            engine.step([frame("a", 2 * MOST_IN_A_ROW - 1)])
