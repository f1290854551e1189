"""PyTorch code gathers, clears and writes rows of a pool like the kernels that support pools."""

import pytest
import torch

from retinad.kernels.kda import state_pool
from retinad.kernels.kda.state_pool import clear_padding, gather_states, rows_are_dense, scatter_states


@pytest.mark.parametrize("triton", [True, False])
@pytest.mark.parametrize("shape", [(3, 5), (2, 40, 30)])
def test_scatter_skips_padding_and_skipped_writes(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, triton: bool, shape: tuple[int, ...]
) -> None:
    if not triton:
        monkeypatch.setattr(state_pool, "runs_triton", lambda device: False)
    states = torch.randn(6, 2, *shape, device=device)[:, 1]
    kept, final = states.clone(), torch.randn(4, *shape, device=device)
    read = torch.tensor([0, -1, 2, 3], dtype=torch.int32, device=device)
    written = torch.tensor([5, 4, -1, 3], device=device)
    assert scatter_states(states, final, read, written) is states
    assert torch.equal(states[[5, 3]], final[[0, 3]])
    assert torch.equal(states[[0, 1, 2, 4]], kept[[0, 1, 2, 4]])


def test_scatter_of_no_sequences(device: torch.device) -> None:
    states, none = torch.ones(2, 3, device=device), torch.zeros(0, dtype=torch.int64, device=device)
    assert (scatter_states(states, torch.zeros(0, 3, device=device), none, none) == 1).all()


def test_clear_padding(device: torch.device) -> None:
    slots = torch.tensor([1, -1, 0], device=device)
    o, final = torch.ones(1, 6, 2, device=device), torch.ones(3, 4, device=device)
    clear_padding(o, final, slots, torch.tensor([0, 2, 5, 6], device=device))
    assert o[0, :, 0].tolist() == [1, 1, 0, 0, 0, 1]
    assert final[:, 0].tolist() == [1, 0, 1]
    rows = torch.ones(3, 2, 2, device=device)
    clear_padding(rows, None, slots, None)
    assert rows[:, 0, 0].tolist() == [1, 0, 1]


def test_gather_reads_an_arbitrary_row_for_padding(device: torch.device) -> None:
    states = torch.arange(6.0, device=device).view(3, 2)
    gathered = gather_states(states, torch.tensor([2, -1], device=device))
    assert gathered is not None
    assert gathered.tolist() == [[4, 5], [0, 1]]
    assert gather_states(states, None) is states


def test_dense_rows() -> None:
    assert rows_are_dense(torch.ones(4, 2, 3)[::2])
    assert not rows_are_dense(torch.ones(4, 2, 3).mT)
