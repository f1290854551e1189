"""Merged weights are the layers' own: names, values, loading and saving do not change, no weight is stored twice."""

import copy
import io

import pytest
import torch
from torch import nn

from retinad.pipeline.model.merged_weights import ROWS, MergedWeights


def linears() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"a": nn.Linear(5, 3, bias=False), "b": nn.Linear(5, 64), "c": nn.Linear(5, 1)})


def listed(layers: nn.ModuleDict) -> list[nn.Linear]:
    return [layer for layer in layers.values() if isinstance(layer, nn.Linear)]


def test_rows_are_the_weights_in_order_padded_with_zeros() -> None:
    layers = linears()
    want = torch.cat([layer.weight.detach() for layer in listed(layers)])
    whole = MergedWeights().rows(listed(layers))
    assert whole.shape == (2 * ROWS, 5)
    assert torch.equal(whole[:68], want)
    assert not whole[68:].any()
    assert all(layer.weight.untyped_storage().data_ptr() == whole.data_ptr() for layer in listed(layers))


def test_taps_have_contiguous_channels() -> None:
    layers = [nn.Conv1d(n, n, 4, groups=n, bias=False) for n in (3, 5)]
    want = torch.cat([layer.weight.detach() for layer in layers])
    whole = MergedWeights().taps(layers)
    assert torch.equal(whole, want)
    assert whole.stride(0) == 1
    parts = want.split_with_sizes([3, 5])
    assert all(torch.equal(layer.weight, part) for layer, part in zip(layers, parts, strict=True))


def test_weights_are_merged_once() -> None:
    layers, together = linears(), MergedWeights()
    assert together.rows(listed(layers)) is together.rows(listed(layers))


@pytest.mark.parametrize("assign", [False, True])
def test_loaded_weights_are_used(assign: bool) -> None:
    layers, together = linears(), MergedWeights()
    together.rows(listed(layers))
    weights = {name: torch.randn_like(value) for name, value in layers.state_dict().items()}
    layers.load_state_dict(weights, assign=assign)
    whole = together.rows(listed(layers))
    assert torch.equal(whole[:68], torch.cat([weights[f"{name}.weight"] for name in "abc"]))
    for name, value in layers.state_dict().items():
        assert torch.equal(value, weights[name]), name


def test_another_number_format_is_used() -> None:
    layers, together = linears(), MergedWeights()
    together.rows(listed(layers))
    layers.to(torch.bfloat16)
    assert together.rows(listed(layers)).dtype == torch.bfloat16


def test_saved_weights_are_the_layers_alone() -> None:
    layers = linears()
    MergedWeights().rows(listed(layers))
    file = io.BytesIO()
    torch.save(layers.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert list(saved) == list(linears().state_dict())
    assert all(torch.equal(saved[name], value) for name, value in layers.state_dict().items())


def test_a_copy_has_weights_of_its_own() -> None:
    layers, together = linears(), MergedWeights()
    whole = together.rows(listed(layers))
    other_layers, other_together = copy.deepcopy((layers, together))
    listed(other_layers)[0].weight.data.zero_()
    assert not other_together.rows(listed(other_layers))[:3].any()
    assert whole[:3].any()


@torch.inference_mode()
def test_weights_stay_ordinary_tensors() -> None:
    """Merged in the first step, in inference mode, they must still be writable afterwards."""
    layers = linears()
    layers.requires_grad_(False)
    whole = MergedWeights().rows(listed(layers))
    assert not whole.is_inference()
    assert not any(layer.weight.is_inference() or layer.weight.requires_grad for layer in listed(layers))
