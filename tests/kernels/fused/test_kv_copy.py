"""Tokens are copied bit for bit, keys and values alike, and nothing else is written."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from retinad.kernels.fused import copy_slots
from retinad.kernels.fused.kv_copy import copy_slots_reference

from ..guards import WithoutTriton, guarded

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn]
T = 60


def make(dtype: torch.dtype, device: torch.device, H: int = 3, D: int = 20) -> Tensor:
    """A cache of random bit patterns, NaN included."""
    size = 2 * T * H * D * dtype.itemsize
    raw = torch.randint(256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return raw.to(device).view(dtype).view(2, T, H, D)


def copied(kv_cache: Tensor, copies: list[list[int]]) -> Tensor:
    """The expected bytes."""
    want = kv_cache.clone().view(torch.uint8)
    for source, target, tokens in copies:
        want[:, target : target + tokens] = want[:, source : source + tokens].clone()
    return want


COPIES = [
    [[10, 0, 6]],
    [[10, 0, 6], [30, 6, 6], [0, 0, 0], [45, 12, 6]],
    [[20, 3, 1], [40, 4, 15]],  # more tokens than programs per copy
    [[7, 50, 0], [-4, -9, 0]],
    [[50, 1, 9], [20, 40, 8]],  # backwards and forwards
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("copies", COPIES, ids=str)
def test_copies_are_bit_exact(device: torch.device, dtype: torch.dtype, copies: list[list[int]]) -> None:
    kv_cache = make(dtype, device)
    want, reference = copied(kv_cache, copies), kv_cache.clone()
    on_device = torch.tensor(copies, device=device)
    copy_slots(kv_cache, on_device)
    assert torch.equal(kv_cache.view(torch.uint8), want)
    copy_slots_reference(reference, on_device)
    assert torch.equal(reference.view(torch.uint8), want)


@pytest.mark.parametrize(("H", "D"), [(1, 1), (16, 64), (16, 128), (17, 100)])
def test_rows_of_any_length(device: torch.device, H: int, D: int) -> None:
    kv_cache, copies = make(torch.bfloat16, device, H, D), [[30, 2, 3]]
    want = copied(kv_cache, copies)
    copy_slots(kv_cache, torch.tensor(copies, device=device))
    assert torch.equal(kv_cache.view(torch.uint8), want)


def test_what_lies_outside_is_neither_read_nor_written(device: torch.device) -> None:
    kv_cache = guarded(torch.randn(2, T, 2, 8, generator=torch.Generator().manual_seed(1)).to(device))
    kept, copies = (
        kv_cache.clone(),
        torch.tensor([[-2, 20, 4], [T - 1, 30, 3], [40, -1, 3], [50, T - 1, 2]], device=device),
    )
    copy_slots(kv_cache, copies)
    want = kept.clone()
    for source, target in [(0, 22), (1, 23), (T - 1, 30), (41, 0), (42, 1), (50, T - 1)]:
        want[:, target] = kept[:, source]
    assert torch.equal(kv_cache, want)
    copy_slots_reference(kept, copies)
    assert torch.equal(kept[:, 20:], want[:, 20:])


def test_pytorch_does_the_same(device: torch.device, without_triton: WithoutTriton) -> None:
    kv_cache = make(torch.float32, device)
    want = copied(kv_cache, COPIES[1])
    without_triton(copy_slots)
    copy_slots(kv_cache, torch.tensor(COPIES[1], device=device))
    assert torch.equal(kv_cache.view(torch.uint8), want)


def test_wrong_arguments_are_refused(device: torch.device) -> None:
    kv_cache, copies = torch.zeros(2, 9, 2, 4, device=device), torch.zeros(2, 3, dtype=torch.int64, device=device)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: copy_slots(kv_cache[0], copies), r"expected shapes \[2, T, H, D\] and \[M, 3\]"),
        (lambda: copy_slots(kv_cache[:1], copies), r"kv_cache: expected a non-empty tensor \[2, 9, 2, 4\]"),
        (lambda: copy_slots(kv_cache[:, 1:], copies), "kv_cache: expected a contiguous tensor"),
        (lambda: copy_slots(kv_cache[:, :0], copies), "kv_cache: expected a non-empty tensor"),
        (lambda: copy_slots(kv_cache, copies[:0]), "copies: expected a non-empty tensor"),
        (lambda: copy_slots(kv_cache, copies[:, :2]), r"copies: expected a non-empty tensor \[2, 3\]"),
        (lambda: copy_slots(kv_cache, copies.int()), "copies: expected torch.int64"),
        (lambda: copy_slots(kv_cache, copies.to("meta")), "copies: expected a tensor on"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.gpu
def test_slots_beyond_32_bits_of_bytes(device: torch.device) -> None:
    kv_cache = torch.zeros(2, 2_000_000, 16, 64, dtype=torch.bfloat16, device=device)  # 8 GB
    tokens = torch.randn(2, 6, 16, 64, device=device).bfloat16()
    kv_cache[:, 1_999_994:] = tokens
    copy_slots(kv_cache, torch.tensor([[1_999_994, 1_500_000, 6]], device=device))
    assert torch.equal(kv_cache[:, 1_500_000:1_500_006], tokens)
    assert not kv_cache[:, :1_500_000].any()
    assert not kv_cache[:, 1_500_006:1_999_994].any()
