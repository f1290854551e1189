"""The transformer block that frame blocks, global blocks and DINOv2 share."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .attention import Mixer


class LayerScale(nn.Module):
    """Scales each channel of a residual branch by a learnt factor `gamma`, in float32."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, tokens: Tensor, branch: Tensor) -> Tensor:
        """Return tokens + gamma * branch, in the dtype of `tokens`."""
        return torch.addcmul(tokens, branch.to(tokens.dtype), self.gamma)


class Mlp(nn.Module):
    """Two linear layers around an exact GELU, in `dtype`."""

    def __init__(self, channels: int, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels, hidden, dtype=dtype)
        self.fc2 = nn.Linear(hidden, channels, dtype=dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.fc1(tokens.to(self.fc1.weight.dtype))
        out: Tensor = self.fc2(functional.gelu(hidden))
        return out


class Block(nn.Module):
    """A pre-norm block: x + ls1(mix(norm1 x)), then x + ls2(mlp(norm2 x)).

    The residual stream and the norms are float32 whatever the `dtype` of the linear layers: a bfloat16 stream would be
    rounded, by up to 2^-9 of its magnitude, 96 times in 48 blocks.

    Args:
        attn: the mixing layer, with C channels, called by the mixer that is passed to `forward`.
        channels: C, the number of channels.
        hidden: number of channels inside the MLP.
        eps: epsilon of the two norms.
        dtype: number format of the MLP.
    """

    def __init__(self, attn: nn.Module, channels: int, hidden: int, *, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels, eps=eps)
        self.attn = attn
        self.ls1 = LayerScale(channels)
        self.norm2 = nn.LayerNorm(channels, eps=eps)
        self.mlp = Mlp(channels, hidden, dtype)
        self.ls2 = LayerScale(channels)

    def forward(self, tokens: Tensor, mix: Mixer) -> Tensor:
        """Run the block over tokens float32 [F, P, C]; returns the same shape and dtype."""
        tokens = self.ls1(tokens, mix(self.attn, self.norm1(tokens)))
        tokens = self.ls2(tokens, self.mlp(self.norm2(tokens)))
        return tokens
