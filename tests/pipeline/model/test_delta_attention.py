"""The delta attention layer equals a step-by-step float64 computation, and its state belongs to one stream."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from retinad.pipeline.model import delta_attention
from retinad.pipeline.model.delta_attention import KimiDeltaAttention
from retinad.pipeline.model.delta_state import DeltaAttentionConfig, DeltaAttentionState, Sequences

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CONFIG = DeltaAttentionConfig(channels=20, heads=1, head_dim=8, value_heads=2, value_dim=6)
PUBLIC_KEYS = {
    "q_proj.weight": (8, 20), "k_proj.weight": (8, 20), "v_proj.weight": (12, 20),
    "q_conv1d.weight": (8, 1, 4), "k_conv1d.weight": (8, 1, 4), "v_conv1d.weight": (12, 1, 4),
    "f_proj.0.weight": (6, 20), "f_proj.1.weight": (16, 6), "b_proj.weight": (2, 20),
    "A_log": (2,), "dt_bias": (16,),
    "g_proj.0.weight": (6, 20), "g_proj.1.weight": (12, 6), "g_proj.1.bias": (12,),
    "o_norm.weight": (6,), "o_proj.weight": (20, 12),
}  # fmt: skip


def make_layer(config: DeltaAttentionConfig = CONFIG, dtype: torch.dtype = torch.float32) -> KimiDeltaAttention:
    layer = KimiDeltaAttention(config, dtype)
    random = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        size = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 1.0
        parameter.data = torch.randn(parameter.shape, generator=random).mul(size).to(DEVICE, parameter.dtype)
    return layer.to(DEVICE)


def make_tokens(T: int, B: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(B, T, 20, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def expected(layer: KimiDeltaAttention, tokens: torch.Tensor) -> torch.Tensor:
    """The outputs for one new stream in float64, by the paper's formulas and the public weights' names."""
    config = layer.config
    w = {name: value.cpu().double() for name, value in layer.state_dict().items()}
    x = tokens[0].cpu().double()
    mixed = {}
    for name in "qkv":
        raw = x @ w[f"{name}_proj.weight"].T
        if config.short_convolution:
            padded = F.pad(raw.T, (3, 0))
            raw = F.conv1d(padded, w[f"{name}_conv1d.weight"], groups=raw.shape[1]).T
        mixed[name] = F.silu(raw)
    q, k = (F.normalize(mixed[name].view(len(x), config.heads, -1), dim=-1) for name in "qk")
    v = mixed["v"].view(len(x), config.value_heads, -1)
    raw_gate = (x @ w["f_proj.0.weight"].T @ w["f_proj.1.weight"].T + w["dt_bias"]).view(len(x), config.value_heads, -1)
    rate = w["A_log"].exp()[:, None]
    bound = config.lower_bound
    decay = (-rate * F.softplus(raw_gate) if bound is None else bound * torch.sigmoid(rate * raw_gate)).exp()
    beta = torch.sigmoid(x @ w["b_proj.weight"].T) * (2 if config.allow_neg_eigval else 1)
    outputs = []
    S = torch.zeros(config.value_heads, config.head_dim, config.value_dim, dtype=torch.float64)
    for t in range(len(x)):
        for h in range(config.value_heads):
            shared = h * config.heads // config.value_heads
            S[h] *= decay[t, h][:, None]
            S[h] += beta[t, h] * torch.outer(k[t, shared], v[t, h] - k[t, shared] @ S[h])
        read = (
            torch.stack([q[t, h * config.heads // config.value_heads] @ S[h] for h in range(config.value_heads)])
            * config.head_dim**-0.5
        )
        outputs.append(read)
    o = torch.stack(outputs)
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + config.norm_eps) * w["o_norm.weight"]
    gate = x @ w["g_proj.0.weight"].T @ w["g_proj.1.weight"].T + w["g_proj.1.bias"]
    gated = (o * torch.sigmoid(gate.view(len(x), config.value_heads, -1))).flatten(1)
    out: torch.Tensor = gated @ w["o_proj.weight"].T
    return out[None]


def convolution(state: DeltaAttentionState | None) -> torch.Tensor:
    assert state is not None
    kept = state.convolution
    assert kept is not None
    return kept


def rows_of(state: DeltaAttentionState, rows: slice) -> DeltaAttentionState:
    return DeltaAttentionState(state.recurrent[rows], convolution(state)[rows])


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.cpu().double() - want.cpu().double()).norm() / want.double().norm())


@pytest.mark.parametrize("T", [1, 3, 20, 66])
@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, lower_bound=-5.0, allow_neg_eigval=True),
        replace(CONFIG, short_convolution=False, heads=2, head_dim=4),
    ],
    ids=["softplus", "bounded", "no convolution"],
)
def test_equals_the_layer_written_out(config: DeltaAttentionConfig, T: int) -> None:
    """Few tokens use the recurrent kernel, 66 the chunked one."""
    layer, tokens = make_layer(config), make_tokens(T)
    assert error(layer(tokens)[0], expected(layer, tokens)) < 1e-4


@pytest.mark.parametrize("T", [3, 66])
@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, value_dim=8)], ids=["other widths", "equal widths"])
def test_merged_projections_are_the_same(monkeypatch: pytest.MonkeyPatch, config: DeltaAttentionConfig, T: int) -> None:
    """As on a device with kernels: few matrix products, over merged weights."""
    monkeypatch.setattr(delta_attention, "runs_triton", lambda device: True)
    layer, tokens = make_layer(config), make_tokens(T, B=2)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    want = torch.cat([expected(layer, tokens[:1]), expected(layer, tokens[1:])])
    assert error(layer(tokens)[0], want) < 1e-4
    assert list(layer.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    layer.load_state_dict({name: value / 2 for name, value in before.items()}, assign=True)
    want = torch.cat([expected(layer, tokens[:1]), expected(layer, tokens[1:])])
    assert error(layer(tokens)[0], want) < 1e-4


def test_bfloat16() -> None:
    layer, tokens = make_layer(dtype=torch.bfloat16), make_tokens(9)
    out, state = layer(tokens)
    assert out.dtype == convolution(state).dtype == torch.bfloat16
    assert state.recurrent.dtype == layer.A_log.dtype == torch.float32
    assert error(out, expected(layer, tokens)) < 5e-2


@pytest.mark.parametrize("cuts", [[0, 1, 2, 3, 12], [0, 2, 12], [0, 0, 12]])
def test_a_stream_in_parts_equals_the_whole(cuts: list[int]) -> None:
    layer, tokens = make_layer(), make_tokens(12)
    want, state_want = layer(tokens)
    parts, state = [], layer.new_state(1)
    for first, end in pairwise(cuts):
        part, state = layer(tokens[:, first:end], state)
        parts.append(part)
    assert error(torch.cat(parts, 1), want) < 1e-5
    assert error(state.recurrent, state_want.recurrent) < 1e-5
    # A projection of one row may round differently than one of twelve.
    torch.testing.assert_close(convolution(state), convolution(state_want), rtol=1e-5, atol=1e-5)


def test_a_state_is_a_value() -> None:
    """Continuing from a state does not change it."""
    layer = make_layer()
    _, state = layer(make_tokens(5))
    snapshot = state.clone()
    first = layer(make_tokens(4, seed=1), state)
    layer(make_tokens(4, seed=2), state)
    again = layer(make_tokens(4, seed=1), snapshot)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1].recurrent, again[1].recurrent)
    assert torch.equal(convolution(first[1]), convolution(again[1]))


@pytest.mark.parametrize("lengths", [[3, 5, 1], [65, 5, 2]], ids=["few", "many"])
def test_streams_of_a_pool_equal_each_alone(lengths: list[int]) -> None:
    layer = make_layer()
    pool = layer.new_state(6)
    pool.recurrent.normal_()
    convolution(pool).normal_()
    kept = pool.clone()
    pool_rows = [4, -1, 0]
    cuts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    tokens = make_tokens(sum(lengths))
    sequences = Sequences(cuts.to(DEVICE), cuts, torch.tensor(pool_rows, device=DEVICE))
    out, same = layer(tokens, pool, sequences)
    assert same is pool
    for n in (0, 2):
        rows = slice(pool_rows[n], pool_rows[n] + 1)
        alone, after = layer(tokens[:, cuts[n] : cuts[n + 1]], rows_of(kept, rows))
        assert error(out[:, cuts[n] : cuts[n + 1]], alone) < 1e-4
        assert error(pool.recurrent[rows], after.recurrent) < 1e-4
        torch.testing.assert_close(convolution(pool)[rows], convolution(after), rtol=1e-5, atol=1e-5)
    assert torch.equal(pool.recurrent[[1, 2, 3, 5]], kept.recurrent[[1, 2, 3, 5]])
    assert torch.equal(convolution(pool)[[1, 2, 3, 5]], convolution(kept)[[1, 2, 3, 5]])


@pytest.mark.parametrize("T", [2, 65])
def test_reading_changes_nothing(T: int) -> None:
    layer = make_layer()
    pool = layer.new_state(3)
    pool.recurrent.normal_()
    kept = pool.clone()
    sequences = Sequences(rows=torch.tensor([2], device=DEVICE))
    read, same = layer(make_tokens(T), pool, sequences, read_only=True)
    assert same is pool
    assert torch.equal(pool.recurrent, kept.recurrent)
    assert torch.equal(convolution(pool), convolution(kept))
    assert torch.equal(read, layer(make_tokens(T), pool, sequences)[0])


@pytest.mark.parametrize("T", [2, 65])
def test_only_keyframes_are_remembered(T: int) -> None:
    """In one call some sequences write and others only read."""
    layer = make_layer()
    pool = layer.new_state(3)
    pool.recurrent.normal_()
    kept = pool.clone()
    sequences = Sequences(rows=torch.tensor([0, 1], device=DEVICE), written_rows=torch.tensor([2, -1], device=DEVICE))
    tokens = make_tokens(T, B=2)
    layer(tokens, pool, sequences)
    _, after = layer(tokens[:1], rows_of(kept, slice(1)))
    assert torch.equal(pool.recurrent[:2], kept.recurrent[:2])
    assert torch.equal(convolution(pool)[:2], convolution(kept)[:2])
    assert error(pool.recurrent[2:], after.recurrent) < 1e-4
    torch.testing.assert_close(convolution(pool)[2:], convolution(after), rtol=1e-5, atol=1e-5)


def test_reset_zeros_the_state() -> None:
    layer = make_layer()
    pool = layer.new_state(3)
    pool.recurrent.normal_()
    convolution(pool).normal_()
    pool.reset(torch.tensor([1], device=DEVICE))
    out, _ = layer(make_tokens(3), pool, Sequences(rows=torch.tensor([1], device=DEVICE)))
    torch.testing.assert_close(out, layer(make_tokens(3))[0], rtol=1e-5, atol=1e-5)
    assert (pool.recurrent[[0, 2]] != 0).all()


def test_a_nan_stays_in_its_row() -> None:
    layer = make_layer()
    tokens = make_tokens(3, B=2)
    clean, _ = layer(tokens)
    pool = layer.new_state(2)
    pool.recurrent[0] = float("nan")
    out, _ = layer(tokens, pool, Sequences(rows=torch.tensor([0, 1], device=DEVICE)))
    assert out[0].isnan().any()
    torch.testing.assert_close(out[1], clean[1], rtol=1e-5, atol=1e-5)


def test_weights_have_the_public_names() -> None:
    shapes = {name: tuple(value.shape) for name, value in KimiDeltaAttention(CONFIG).state_dict().items()}
    assert shapes == PUBLIC_KEYS


@pytest.mark.parametrize("assign", [False, True])
def test_gate_parameters_survive_loading(assign: bool) -> None:
    """Public weights store A_log as [1, 1, HV, 1]."""
    weights = {name: torch.randn(shape) for name, shape in PUBLIC_KEYS.items()}
    weights["A_log"] = weights["A_log"].view(1, 1, 2, 1)
    with torch.device("meta" if assign else "cpu"):
        layer = KimiDeltaAttention(CONFIG)
    layer.load_state_dict(weights, assign=assign)
    layer(torch.randn(1, 2, 20))
    for name, value in layer.state_dict().items():
        assert torch.equal(value, weights[name].view(value.shape)), name


def test_the_gate_is_stored_with_the_weights() -> None:
    """A bounded gate on softplus weights, or the reverse, would be silently wrong."""
    bounded = replace(CONFIG, lower_bound=-5.0)
    weights = torch.nn.ModuleDict({"attn": KimiDeltaAttention(bounded)}).state_dict()
    torch.nn.ModuleDict({"attn": KimiDeltaAttention(bounded)}).load_state_dict(weights)
    with pytest.raises(ValueError, match=r"attn\.lower_bound: .* softplus gate, but the weights have lower_bound -5"):
        torch.nn.ModuleDict({"attn": KimiDeltaAttention(CONFIG)}).load_state_dict(weights)
    with pytest.raises(ValueError, match=r"expects the lower_bound -4\.0 gate, but the weights have lower_bound -5"):
        KimiDeltaAttention(replace(CONFIG, lower_bound=-4.0)).load_state_dict(
            {name.removeprefix("attn."): value for name, value in weights.items()}
        )
    with pytest.raises(ValueError, match=r"expects the lower_bound -5\.0 gate, but the weights have softplus"):
        KimiDeltaAttention(bounded).load_state_dict(KimiDeltaAttention(CONFIG).state_dict())


def test_wrong_arguments_are_refused() -> None:
    layer = make_layer()
    with pytest.raises(ValueError, match=r"tokens: expected shape \[B, T, 20\], got \[1, 3, 19\]"):
        layer(make_tokens(3)[..., 1:])
    with pytest.raises(ValueError, match=r"state: expected a pool, since sequences\.rows is set, got None"):
        layer(make_tokens(3), None, Sequences(rows=torch.tensor([0], device=DEVICE)))
    with pytest.raises(ValueError, match=r"initial_state: expected shape \[1, 3, 28\]"):
        layer(make_tokens(3), layer.new_state(2))
