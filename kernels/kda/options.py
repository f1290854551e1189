"""The arguments of one Kimi Delta Attention call, in two groups: its tensors and its options.

The public functions have the same flat signatures as those of fla (flash-linear-attention); all functions below them
take these two groups. Both are built at every call. So they are named tuples, which are as immutable as frozen
dataclasses but take a third to half of the host time.
"""

from typing import NamedTuple

from torch import Tensor


class KdaTensors(NamedTuple):
    """The tensors of one call, with the names of the public arguments.

    `written_indices` [N] are the pool rows where final states are written, or None if they are not written in place.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    A_log: Tensor | None = None
    dt_bias: Tensor | None = None
    initial_state: Tensor | None = None
    cu_seqlens: Tensor | None = None
    state_indices: Tensor | None = None
    written_indices: Tensor | None = None
    cu_seqlens_cpu: Tensor | None = None

    @property
    def on_device(self) -> tuple[Tensor | None, ...]:
        """The tensors that kernels receive: all but `cu_seqlens_cpu`."""
        return self[:-1]


class KdaOptions(NamedTuple):
    """The options of one call, which are no tensors, with the names of the public arguments.

    `chunk_size` and `split` belong to the chunked form. `A_log`, `dt_bias` and `lower_bound` apply only with
    `use_gate_in_kernel`.
    """

    scale: float | None = None
    output_final_state: bool = False
    use_qk_l2norm_in_kernel: bool = False
    use_gate_in_kernel: bool = False
    use_beta_sigmoid_in_kernel: bool = False
    allow_neg_eigval: bool = False
    lower_bound: float | None = None
    state_v_first: bool = False
    inplace_final_state: bool = False
    chunk_size: int = 64
    split: bool | None = None

    @property
    def beta_factor(self) -> int:
        """The factor of sigmoid(beta): 1, or 2 with `allow_neg_eigval`. 0 means that beta is used as given."""
        if not self.use_beta_sigmoid_in_kernel:
            return 0
        return 2 if self.allow_neg_eigval else 1

    @property
    def has_final_state(self) -> bool:
        """Whether the call writes final states: to a new tensor or in place."""
        return self.output_final_state or self.inplace_final_state
