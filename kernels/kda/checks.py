"""Checks the arguments of Kimi Delta Attention. All implementations use these checks, so they accept the same calls.

Dimension letters of the package: B batch rows, T tokens, H query/key heads, HV value heads (a multiple of H), K key
width, V value width, N sequences (B of them, or those that `cu_seqlens` delimits).
"""

from dataclasses import dataclass
from itertools import pairwise

import torch

from .options import KdaOptions, KdaTensors

KERNEL_DTYPES = frozenset({torch.bfloat16, torch.float16, torch.float32})
REFERENCE_DTYPES = KERNEL_DTYPES | {torch.float64}
INDEX_DTYPES = frozenset({torch.int32, torch.int64})
MIN_LOWER_BOUND = -5.0
MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class KdaShape:
    """The checked sizes of one call, and the `scale` by which its output is multiplied."""

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
        """Number of value heads per query/key head."""
        return self.HV // self.H

    def state(self, state_v_first: bool, slots: int | None = None) -> tuple[int, int, int, int]:
        """Shape of the states of all sequences, or, with `slots`, of a pool of that many states."""
        rows = self.N if slots is None else slots
        return (rows, self.HV, self.V, self.K) if state_v_first else (rows, self.HV, self.K, self.V)


def check_inputs(tensors: KdaTensors, options: KdaOptions, dtypes: frozenset[torch.dtype] = KERNEL_DTYPES) -> KdaShape:
    """Check the arguments of one call and return its sizes.

    q, k [B, T, H, K]; v [B, T, HV, V]; g [B, T, HV, K]; beta [B, T, HV]; A_log [HV]; dt_bias [HV*K];
    cu_seqlens, cu_seqlens_cpu [N+1] int32 or int64; state_indices [N] int32 or int64;
    initial_state [N, HV, K, V] ([N, HV, V, K] with `state_v_first`), or [slots, ...] with `state_indices`. Arguments
    that say where final states are written are checked by `check_writing`.

    The values of `cu_seqlens` are read only where that needs no device synchronisation: from `cu_seqlens_cpu`, or
    from `cu_seqlens` itself if it is a CPU tensor.

    Raises:
        ValueError: an argument is invalid. The message names it, what was expected and what was passed.
    """
    q = tensors.q
    B, T, H, HV, K, V = _token_sizes(tensors)
    N = count_sequences(B, T, tensors.cu_seqlens, tensors.cu_seqlens_cpu)
    shape = KdaShape(B, T, H, HV, K, V, N, K**-0.5 if options.scale is None else float(options.scale))
    _check_options(options)
    if tensors.A_log is not None:
        _expect("A_log", tensors.A_log, (HV,), "[HV]")
    if tensors.dt_bias is not None:
        _expect("dt_bias", tensors.dt_bias, (HV * K,), "[HV*K]")
    _check_state(shape, tensors, options.state_v_first)
    for name in ("q", "k", "v", "g", "beta", "initial_state"):
        tensor: torch.Tensor | None = getattr(tensors, name)
        if tensor is not None and tensor.dtype not in dtypes:
            raise ValueError(f"{name}: expected one of {sorted(map(str, dtypes))}, got {tensor.dtype}")
    check_devices(
        q.device, k=tensors.k, v=tensors.v, g=tensors.g, beta=tensors.beta, A_log=tensors.A_log,
        dt_bias=tensors.dt_bias, initial_state=tensors.initial_state, cu_seqlens=tensors.cu_seqlens,
        state_indices=tensors.state_indices,
    )  # fmt: skip
    return shape


def count_sequences(B: int, T: int, cu_seqlens: torch.Tensor | None, cu_seqlens_cpu: torch.Tensor | None = None) -> int:
    """Number of sequences: B, or those of `cu_seqlens` if given. Raises ValueError if `cu_seqlens` does not fit T."""
    if cu_seqlens is None:
        if cu_seqlens_cpu is not None:
            raise ValueError("cu_seqlens_cpu: expected None if cu_seqlens is None, got a tensor")
        return B
    _expect_indices("cu_seqlens", cu_seqlens)
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] == 0:
        raise ValueError(f"cu_seqlens: expected shape [N+1], got {list(cu_seqlens.shape)}")
    if B != 1:
        raise ValueError(f"cu_seqlens: expected B = 1, since sequences lie end to end, got B = {B}")
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
            raise ValueError(f"{name}: expected the device of the first argument ({device}), got {tensor.device}")


def sequence_bounds(shape: KdaShape, cu_seqlens: torch.Tensor | None) -> list[tuple[int, int]]:
    """First token and end of each sequence in a batch row. Reads `cu_seqlens`, which synchronises with its device."""
    if cu_seqlens is None:
        return [(0, shape.T)]
    cuts = cu_seqlens.tolist()
    return list(pairwise(cuts))


def _token_sizes(tensors: KdaTensors) -> tuple[int, int, int, int, int, int]:
    q, k, v, g, beta = tensors[:5]
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
    """Raise ValueError unless `cuts` are the cumulative lengths of sequences with T tokens in total."""
    if cuts[0] != 0:
        raise ValueError(f"{name}: expected to start at 0, got {cuts[0]}")
    if cuts[-1] != T:
        raise ValueError(f"{name}: expected to end at T = {T}, got {cuts[-1]}")
    for i, (first, end) in enumerate(pairwise(cuts)):
        if end < first:
            raise ValueError(f"{name}: expected not to decrease, got {first} then {end} at {i}")


def _check_options(options: KdaOptions) -> None:
    lower_bound = options.lower_bound
    if options.use_gate_in_kernel and lower_bound is not None and not (MIN_LOWER_BOUND <= lower_bound < 0):
        raise ValueError(f"lower_bound: expected a value in [{MIN_LOWER_BOUND}, 0), got {lower_bound}")
    if options.allow_neg_eigval and not options.use_beta_sigmoid_in_kernel:
        raise ValueError("allow_neg_eigval=True needs use_beta_sigmoid_in_kernel=True, got False")
    if options.chunk_size not in (16, 32, 64):
        raise ValueError(f"chunk_size: expected 16, 32 or 64, got {options.chunk_size}")


def _check_state(shape: KdaShape, tensors: KdaTensors, state_v_first: bool) -> None:
    initial_state, state_indices = tensors.initial_state, tensors.state_indices
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
    """Raise ValueError unless `indices` is int32 or int64 [N]. On the CPU, values must be from -1 to slots - 1."""
    _expect(name, indices, (N,), "[N]")
    _expect_indices(name, indices)
    if indices.device.type == "cpu" and N and not (int(indices.min()) >= -1 and int(indices.max()) < slots):
        raise ValueError(f"{name}: expected values from -1 to {slots - 1}, got {indices.tolist()}")


def _expect_indices(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype not in INDEX_DTYPES:
        raise ValueError(f"{name}: expected int32 or int64, got {tensor.dtype}")


def dense_rows(x: torch.Tensor) -> torch.Tensor:
    """Return `x` [B, T, ...], or a copy, with dense heads in each token and one stride between all tokens of the batch.

    A slice of a fused projection already has this layout, so it is not copied.
    """
    dense = x.stride(-1) == 1 and (x.dim() == 3 or x.stride(2) == x.shape[3] or x.shape[2] == 1)
    even = x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1)
    return x if dense and even else x.contiguous()
