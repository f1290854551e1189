"""Tokens are moved bit for bit, keys and values alike, and no others are touched."""

import pytest
import torch
from torch import Tensor

from retinad.kernels.fused import evict
from retinad.kernels.fused.kv_copy import evict_reference

from ..kda.oracle import guarded

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn]
T = 60


def make(dtype: torch.dtype, device: torch.device, H: int = 3, D: int = 20) -> Tensor:
    """Every bit pattern may stand in a memory, NaN too."""
    size = 2 * T * H * D * dtype.itemsize
    raw = torch.randint(256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return raw.to(device).view(dtype).view(2, T, H, D)


def moved(memory: Tensor, moves: list[list[int]]) -> Tensor:
    """The bytes that are expected."""
    want = memory.clone().view(torch.uint8)
    for source, target, tokens in moves:
        want[:, target : target + tokens] = want[:, source : source + tokens].clone()
    return want


MOVES = [
    [[10, 0, 6]],
    [[10, 0, 6], [30, 6, 6], [0, 0, 0], [45, 12, 6]],
    [[20, 3, 1], [40, 4, 15]],  # more tokens than programs a move
    [[7, 50, 0], [-4, -9, 0]],
    [[50, 1, 9], [20, 40, 8]],  # backwards and forwards
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("moves", MOVES, ids=str)
def test_moves_are_copies(device: torch.device, dtype: torch.dtype, moves: list[list[int]]) -> None:
    memory = make(dtype, device)
    want, reference = moved(memory, moves), memory.clone()
    on_device = torch.tensor(moves, device=device)
    evict(memory, on_device)
    assert torch.equal(memory.view(torch.uint8), want)
    evict_reference(reference, on_device)
    assert torch.equal(reference.view(torch.uint8), want)


@pytest.mark.parametrize(("H", "D"), [(1, 1), (16, 64), (16, 128), (17, 100)])
def test_rows_of_any_length(device: torch.device, H: int, D: int) -> None:
    memory, moves = make(torch.bfloat16, device, H, D), [[30, 2, 3]]
    want = moved(memory, moves)
    evict(memory, torch.tensor(moves, device=device))
    assert torch.equal(memory.view(torch.uint8), want)


def test_what_lies_outside_is_neither_read_nor_written(device: torch.device) -> None:
    memory = guarded(torch.randn(2, T, 2, 8, generator=torch.Generator().manual_seed(1)).to(device))
    kept, moves = (
        memory.clone(),
        torch.tensor([[-2, 20, 4], [T - 1, 30, 3], [40, -1, 3], [50, T - 1, 2]], device=device),
    )
    evict(memory, moves)
    want = kept.clone()
    for source, target in [(0, 22), (1, 23), (T - 1, 30), (41, 0), (42, 1), (50, T - 1)]:
        want[:, target] = kept[:, source]
    assert torch.equal(memory, want)
    evict_reference(kept, moves)
    assert torch.equal(kept[:, 20:], want[:, 20:])


def test_pytorch_does_the_same(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = make(torch.float32, device)
    want = moved(memory, MOVES[1])
    monkeypatch.setattr("retinad.kernels.fused.kv_copy.runs_triton", lambda device: False)
    evict(memory, torch.tensor(MOVES[1], device=device))
    assert torch.equal(memory.view(torch.uint8), want)


def test_wrong_arguments_are_refused(device: torch.device) -> None:
    memory, moves = torch.zeros(2, 9, 2, 4, device=device), torch.zeros(2, 3, dtype=torch.int64, device=device)
    for call, message in [
        (lambda: evict(memory[0], moves), r"expected \[2, T, H, D\] and \[M, 3\]"),
        (lambda: evict(memory[:1], moves), r"memory: expected a tensor \[2, 9, 2, 4\]"),
        (lambda: evict(memory[:, 1:], moves), "memory: expected a contiguous tensor"),
        (lambda: evict(memory[:, :0], moves), "memory: expected .* that is not empty"),
        (lambda: evict(memory, moves[:0]), "moves: expected .* that is not empty"),
        (lambda: evict(memory, moves[:, :2]), r"moves: expected a tensor \[2, 3\]"),
        (lambda: evict(memory, moves.int()), "moves: expected torch.int64"),
        (lambda: evict(memory, moves.to("meta")), "moves: expected a tensor on"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.gpu
def test_places_beyond_32_bits_of_bytes(device: torch.device) -> None:
    memory = torch.zeros(2, 2_000_000, 16, 64, dtype=torch.bfloat16, device=device)  # 8 GB
    tokens = torch.randn(2, 6, 16, 64, device=device).bfloat16()
    memory[:, 1_999_994:] = tokens
    evict(memory, torch.tensor([[1_999_994, 1_500_000, 6]], device=device))
    assert torch.equal(memory[:, 1_500_000:1_500_006], tokens)
    assert not memory[:, :1_500_000].any()
    assert not memory[:, 1_500_006:1_999_994].any()
