"""Base classes of patch embeddings, which turn normalised images into patch tokens; `backbones` lists subclasses."""

from torch import Tensor, nn


class PatchEmbedding(nn.Module):
    """Base class of all patch embeddings."""

    def forward(self, images: Tensor) -> Tensor:
        """Embed normalised images [F, 3, h, w].

        Returns:
            patch tokens float32 [F, rows * columns, C], row by row.
        """
        raise NotImplementedError

    def grid_constants(self, rows: int, columns: int) -> tuple[Tensor, ...]:
        """The tensors, other than weights, that `forward` reads for a grid of patches; computed if not cached.

        A captured CUDA graph keeps references to these tensors, since the cache may drop them.
        """
        return ()


class TransformerPatches(PatchEmbedding):
    """A patch embedding that is a stack of `Block`s in which each frame attends to itself, without rotary positions.

    Fused execution runs the blocks with fused kernels. It calls the parts of this class in the order of `forward`:
    `tokens`, `blocks`, then `norm` over all but the first `prefix_tokens` tokens.

    Attributes:
        blocks: the blocks.
        norm: the norm of the patch tokens.
        prefix_tokens: number of tokens that precede the patch tokens and are not part of the result.
    """

    blocks: nn.ModuleList
    norm: nn.LayerNorm
    prefix_tokens: int

    def tokens(self, images: Tensor) -> Tensor:
        """The input of the first block, float32 [F, prefix_tokens + rows * columns, C]."""
        raise NotImplementedError
