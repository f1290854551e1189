"""One validation of Kimi Delta Attention's arguments, so that every implementation accepts and refuses the same calls.

Dimension letters of the package: B batch, T tokens, H query/key heads, HV value heads (a multiple of H), K key width,
V value width, N sequences (B, or the segments of `cu_seqlens`).
"""

from dataclasses import dataclass
from itertools import pairwise

import torch

KERNEL_DTYPES = frozenset({torch.bfloat16, torch.float16, torch.float32})
REFERENCE_DTYPES = KERNEL_DTYPES | {torch.float64}
INDEX_DTYPES = frozenset({torch.int32, torch.int64})
MIN_LOWER_BOUND = -5.0
MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class KdaShape:
    """Sizes of one call, resolved and checked. `scale` is the factor of the output."""

    B: int
    T: int
    H: int
    HV: int
    K: int
    V: int
    N: int
    scale: float

    @property
    def group(self) -> int:
        """Value heads that share one query/key head."""
        return self.HV // self.H

    def state(self, state_v_first: bool, slots: int | None = None) -> tuple[int, int, int, int]:
        """Shape of the states of all sequences, or of a pool of `slots` states."""
        rows = self.N if slots is None else slots
        return (rows, self.HV, self.V, self.K) if state_v_first else (rows, self.HV, self.K, self.V)


def check_inputs(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    use_gate_in_kernel: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    lower_bound: float | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    state_indices: torch.Tensor | None = None,
    chunk_size: int = 64,
    dtypes: frozenset[torch.dtype] = KERNEL_DTYPES,
) -> KdaShape:
    """Check the arguments of one call and return its sizes.

    q, k [B, T, H, K]; v [B, T, HV, V]; g [B, T, HV, K]; beta [B, T, HV]; A_log [HV]; dt_bias [HV*K];
    cu_seqlens, cu_seqlens_cpu [N+1] int32 or int64; state_indices [N] int32 or int64;
    initial_state [N, HV, K, V] ([N, HV, V, K] with `state_v_first`), or [slots, ...] where `state_indices` is given.

    The values of `cu_seqlens` are read only where that costs no device synchronisation: from `cu_seqlens_cpu`, or
    from `cu_seqlens` itself if it is a CPU tensor.

    Raises ValueError naming the argument, the shape (or value) expected and the one that came.
    """
    B, T, H, HV, K, V = _token_sizes(q, k, v, g, beta)
    N = count_sequences(B, T, cu_seqlens, cu_seqlens_cpu)
    shape = KdaShape(B, T, H, HV, K, V, N, K**-0.5 if scale is None else float(scale))
    _check_options(use_gate_in_kernel, lower_bound, use_beta_sigmoid_in_kernel, allow_neg_eigval, chunk_size)
    if A_log is not None:
        _expect("A_log", A_log, (HV,), "[HV]")
    if dt_bias is not None:
        _expect("dt_bias", dt_bias, (HV * K,), "[HV*K]")
    _check_state(shape, initial_state, state_indices, state_v_first)
    for name, tensor in (("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta), ("initial_state", initial_state)):
        if tensor is not None and tensor.dtype not in dtypes:
            raise ValueError(f"{name}: expected one of {sorted(map(str, dtypes))}, got {tensor.dtype}")
    check_devices(
        q.device, k=k, v=v, g=g, beta=beta, A_log=A_log, dt_bias=dt_bias, initial_state=initial_state,
        cu_seqlens=cu_seqlens, state_indices=state_indices,
    )  # fmt: skip
    return shape


def count_sequences(B: int, T: int, cu_seqlens: torch.Tensor | None, cu_seqlens_cpu: torch.Tensor | None = None) -> int:
    """Number of sequences of a [B, T, ...] batch, cut by `cu_seqlens` if given; ValueError if the cuts do not fit."""
    if cu_seqlens is None:
        if cu_seqlens_cpu is not None:
            raise ValueError("cu_seqlens_cpu: expected None where cu_seqlens is None, got a tensor")
        return B
    _expect_indices("cu_seqlens", cu_seqlens)
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] == 0:
        raise ValueError(f"cu_seqlens: expected shape [N+1], got {list(cu_seqlens.shape)}")
    if B != 1:
        raise ValueError(f"cu_seqlens: expected B = 1 with it (sequences lie end to end), got B = {B}")
    if cu_seqlens_cpu is not None:
        _expect_indices("cu_seqlens_cpu", cu_seqlens_cpu)
        _expect("cu_seqlens_cpu", cu_seqlens_cpu, tuple(cu_seqlens.shape), "[N+1]")
        if cu_seqlens_cpu.device.type != "cpu":
            raise ValueError(f"cu_seqlens_cpu: expected a CPU tensor, got one on {cu_seqlens_cpu.device}")
        check_cuts("cu_seqlens_cpu", cu_seqlens_cpu.tolist(), T)
    if cu_seqlens.device.type == "cpu":
        check_cuts("cu_seqlens", cu_seqlens.tolist(), T)
    return int(cu_seqlens.shape[0]) - 1


def check_devices(device: torch.device, **tensors: torch.Tensor | None) -> None:
    """Raise ValueError unless all named tensors are on `device`."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != device:
            raise ValueError(f"{name}: expected a tensor on {device}, as the first argument is, got {tensor.device}")


def sequence_bounds(shape: KdaShape, cu_seqlens: torch.Tensor | None) -> list[tuple[int, int]]:
    """First token and end of each sequence within one batch row; reads `cu_seqlens` (synchronises if on a device)."""
    if cu_seqlens is None:
        return [(0, shape.T)]
    cuts = cu_seqlens.tolist()
    return list(pairwise(cuts))


def _token_sizes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[int, int, int, int, int, int]:
    if q.dim() != 4:
        raise ValueError(f"q: expected shape [B, T, H, K], got {list(q.shape)}")
    if v.dim() != 4:
        raise ValueError(f"v: expected shape [B, T, HV, V], got {list(v.shape)}")
    B, T, H, K = q.shape
    HV, V = v.shape[2], v.shape[3]
    _expect("k", k, (B, T, H, K), "[B, T, H, K]")
    _expect("v", v, (B, T, HV, V), "[B, T, HV, V]")
    _expect("g", g, (B, T, HV, K), "[B, T, HV, K]")
    _expect("beta", beta, (B, T, HV), "[B, T, HV]")
    if H == 0 or HV == 0 or HV % H:
        raise ValueError(f"v: expected HV to be a positive multiple of H = {H}, got HV = {HV}")
    if not (0 < K <= MAX_HEAD_DIM):
        raise ValueError(f"q: expected 1 <= K <= {MAX_HEAD_DIM}, got K = {K}")
    if not (0 < V <= MAX_HEAD_DIM):
        raise ValueError(f"v: expected 1 <= V <= {MAX_HEAD_DIM}, got V = {V}")
    return B, T, H, HV, K, V


def check_cuts(name: str, cuts: list[int], T: int) -> None:
    """Raise ValueError unless `cuts` are the cumulative lengths of sequences over T tokens."""
    if cuts[0] != 0:
        raise ValueError(f"{name}: expected to start at 0, got {cuts[0]}")
    if cuts[-1] != T:
        raise ValueError(f"{name}: expected to end at T = {T}, got {cuts[-1]}")
    for i, (first, end) in enumerate(pairwise(cuts)):
        if end < first:
            raise ValueError(f"{name}: expected not to decrease, got {first} then {end} at {i}")


def _check_options(
    use_gate_in_kernel: bool,
    lower_bound: float | None,
    use_beta_sigmoid_in_kernel: bool,
    allow_neg_eigval: bool,
    chunk_size: int,
) -> None:
    if use_gate_in_kernel and lower_bound is not None and not (MIN_LOWER_BOUND <= lower_bound < 0):
        raise ValueError(f"lower_bound: expected a value in [{MIN_LOWER_BOUND}, 0), got {lower_bound}")
    if allow_neg_eigval and not use_beta_sigmoid_in_kernel:
        raise ValueError("allow_neg_eigval: expected use_beta_sigmoid_in_kernel=True with it, got False")
    if chunk_size not in (16, 32, 64):
        raise ValueError(f"chunk_size: expected 16, 32 or 64, got {chunk_size}")


def _check_state(
    shape: KdaShape, initial_state: torch.Tensor | None, state_indices: torch.Tensor | None, state_v_first: bool
) -> None:
    layout = "HV, V, K]" if state_v_first else "HV, K, V]"
    if state_indices is None:
        if initial_state is not None:
            _expect("initial_state", initial_state, shape.state(state_v_first), f"[N, {layout}")
        return
    if initial_state is None:
        raise ValueError(f"initial_state: expected a pool [slots, {layout} with state_indices, got None")
    slots = initial_state.shape[0] if initial_state.dim() else 0
    _expect("initial_state", initial_state, shape.state(state_v_first, slots), f"[slots, {layout}")
    check_indices("state_indices", state_indices, shape.N, slots)


def _expect(name: str, tensor: torch.Tensor, shape: tuple[int, ...], letters: str) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name}: expected shape {letters} = {list(shape)}, got {list(tensor.shape)}")


def check_indices(name: str, indices: torch.Tensor, N: int, slots: int) -> None:
    """Raise ValueError unless `indices` is int32 or int64 [N]; values (-1 to slots - 1) only of a CPU tensor."""
    _expect(name, indices, (N,), "[N]")
    _expect_indices(name, indices)
    if indices.device.type == "cpu" and N and not (int(indices.min()) >= -1 and int(indices.max()) < slots):
        raise ValueError(f"{name}: expected values from -1 to {slots - 1}, got {indices.tolist()}")


def _expect_indices(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype not in INDEX_DTYPES:
        raise ValueError(f"{name}: expected int32 or int64, got {tensor.dtype}")


def dense_rows(x: torch.Tensor) -> torch.Tensor:
    """`x` [B, T, ...], or a copy of it, so that a token's heads are dense and one stride leads from token to token over
    all rows of the batch, as in a slice of a fused projection."""
    dense = x.stride(-1) == 1 and (x.dim() == 3 or x.stride(2) == x.shape[3] or x.shape[2] == 1)
    even = x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
    return x if dense and even else x.contiguous()
