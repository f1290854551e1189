"""Device measurements: overlapping kernels count once, and a CPU has no GPU figures."""

from retinad.pipeline.engine.device_usage import covered, free_room, gpu_busy_s, gpu_name, peak_memory


def test_time_that_several_kernels_share_counts_once() -> None:
    assert covered([]) == 0
    assert covered([(5, 6), (0, 2), (1, 3), (1.5, 2.5), (6, 7)]) == 5


def test_a_cpu_has_resident_memory_and_no_gpu() -> None:
    peak = peak_memory("cpu")
    assert peak.used_bytes > 64 << 20, "the process has imported torch"
    assert peak.reserved_bytes is None
    assert (free_room("cpu"), gpu_name("cpu"), gpu_busy_s("cpu", lambda: None)) == (None, None, None)
