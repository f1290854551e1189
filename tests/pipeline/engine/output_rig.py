"""An output that is not tokens, for tests: it has several layers, two tensors, and a number format of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from retinad.pipeline.config import ModelConfig
from retinad.pipeline.engine.heads import make_heads
from retinad.pipeline.engine.outputs import HeadInputs, OutputHead, OutputHeads
from retinad.pipeline.engine.token_outputs import TokenHead
from retinad.pipeline.engine.token_shape import TokenShape
from retinad.pipeline.frames import Output, OutputKind
from retinad.pipeline.model.network import LayerOutput, Network


def across(output: LayerOutput) -> Tensor:
    assert output.across is not None
    return output.across


@dataclass(frozen=True)
class MeanHead:
    """Publishes the mean token of each of its layers, and the number of tokens, in float32."""

    layers: tuple[int, ...]

    @property
    def kind(self) -> OutputKind:
        return OutputKind.FEATURES

    def outputs(self, shape: TokenShape) -> tuple[Output, ...]:
        size = (len(self.layers), shape.channels)
        return (
            Output("mean/tokens", size, "float32", OutputKind.FEATURES),
            Output("mean/count", (1,), "float32", OutputKind.FEATURES),
        )

    def gather(self, inputs: HeadInputs, targets: Sequence[Tensor]) -> None:
        means = torch.stack([across(layer).mean(1) for layer in inputs.layers], dim=1)
        targets[0].copy_(means)
        targets[1].fill_(inputs.shape.tokens)


def heads_with_mean(config: ModelConfig, model: Network) -> OutputHeads:
    """The token heads of a model, and a `MeanHead` of the same layers."""
    tokens: list[OutputHead] = [TokenHead(layer, config.output) for layer in config.output.layers]
    assert OutputHeads(tokens).layers == make_heads(config, model).layers
    return OutputHeads([*tokens, MeanHead(config.output.layers)])
