"""The fused norm, rotation and append equal the model's own, for both layouts, and write only their tokens."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from retinad.kernels.fused import Append, HeadNorm, RotaryTables, qk_norm_rope
from retinad.kernels.fused.qk_norm_rope_types import FLOAT8
from retinad.pipeline.model.rope import Rotation, rotation_2d, rotation_3d, spatial_part

from ..guards import BFLOAT16, FLOAT16, FLOAT32, WithoutTriton, assert_close, guarded
from .tolerances import TOLERANCE

DTYPES = [BFLOAT16, FLOAT16, FLOAT32]
KINDS = ["2d", "3d", "none"]


@dataclass(frozen=True)
class Case:
    """One call, and the model's rotation from which its tables are built."""

    packed: Tensor
    norm: HeadNorm | None
    tables: RotaryTables | None
    rotation: Rotation | None

    def run(self, query: Tensor | None = None, append: Append | None = None) -> None:
        qk_norm_rope(self.packed, self.norm, self.tables, query=query, append=append)

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [F, P, H, D] in float64, by the model's classes."""
        query, key, value = (part.double() for part in self.packed.unbind(2))
        if self.norm is not None:
            parameters = (self.norm.query_weight, self.norm.query_bias, self.norm.key_weight, self.norm.key_bias)
            a, b, c, d = (parameter.double() for parameter in parameters)
            query = functional.layer_norm(query, a.shape, a, b, self.norm.eps)
            key = functional.layer_norm(key, c.shape, c, d, self.norm.eps)
        if self.rotation is not None:
            query, key = self.rotation.apply(query), self.rotation.apply(key)
        return query, key, value


def make(
    kind: str, dtype: torch.dtype, device: torch.device, *, F: int = 2, grid: tuple[int, int] = (1, 3), H: int = 3,
    D: int = 64, special: int = 2, norm: bool = True,
) -> Case:  # fmt: skip
    """Tokens whose heads have means far from 0; every tensor is surrounded by NaN."""
    random = torch.Generator().manual_seed(H * D)
    P = grid[0] * grid[1] + special
    packed = guarded((2 * torch.randn(F, P, 3, H, D, generator=random) + 1).to(device, dtype))
    a, b, c, d = (guarded(torch.randn(D, generator=random).to(device)) for _ in range(4))
    rotation = make_rotation(kind, F, (*grid, special, D, device))
    tables = None
    if rotation is not None:
        cos, sin = (guarded(part.reshape(part.shape[0], P, D // 2)) for part in (rotation.cos, rotation.sin))
        tables = RotaryTables(cos, sin, rotation.pairs)
    return Case(packed, HeadNorm(a, b, c, d) if norm else None, tables, rotation)


def make_rotation(kind: str, F: int, shape: tuple[int, int, int, int, torch.device]) -> Rotation | None:
    """Make a rotation; `shape` has the numbers of rows, columns and special tokens, D, and the device."""
    if kind == "none":
        return None
    if kind == "2d":
        return rotation_2d(*shape)
    times = 1000.0 * torch.arange(1, F + 1, dtype=torch.float64, device=shape[-1])
    return rotation_3d(times, spatial_part(*shape), shape[3])


def assert_tokens(case: Case, want: tuple[Tensor, ...]) -> None:
    tolerance = TOLERANCE[case.packed.dtype]
    for got, part in zip(case.packed.unbind(2), want, strict=True):
        assert_close(got, part, tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_in_place_equals_the_models_rotation(device: torch.device, kind: str, norm: bool, dtype: torch.dtype) -> None:
    case = make(kind, dtype, device, norm=norm)
    want, values = case.expected(), case.packed[:, :, 2].clone()
    if kind == "none" and not norm:
        return
    case.run()
    assert_tokens(case, want)
    assert torch.equal(case.packed[:, :, 2], values)


@pytest.mark.parametrize(("H", "D"), [(1, 128), (6, 64), (5, 12), (2, 24), (3, 20), (12, 16)])
@pytest.mark.parametrize("kind", KINDS)
def test_odd_heads(device: torch.device, kind: str, H: int, D: int) -> None:
    case = make(kind, FLOAT32, device, H=H, D=D)
    want = case.expected()
    case.run()
    assert_tokens(case, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_appends_at_the_slots_on_the_device(device: torch.device, kind: str, dtype: torch.dtype) -> None:
    """Keys and values are written to their slots only, queries to a separate tensor; packed is unchanged."""
    case = make(kind, dtype, device)
    F, P, _, H, D = case.packed.shape
    (query, key, value), kept = case.expected(), case.packed.clone()
    out = guarded(torch.full((F, P, H, D), float("nan"), dtype=dtype, device=device))
    kv_cache = torch.full((2, 40, H, D), float("nan"), dtype=dtype, device=device)
    case.run(out, Append(kv_cache, torch.tensor([25, 3], device=device)))
    assert torch.equal(case.packed, kept)
    assert_close(out, query, TOLERANCE[dtype])
    assert_close(kv_cache[0, 25 : 25 + P], key[0], TOLERANCE[dtype])
    assert_close(kv_cache[0, 3 : 3 + P], key[1], TOLERANCE[dtype])
    assert torch.equal(kv_cache[1, 25 : 25 + P].double(), value[0])
    assert torch.equal(kv_cache[1, 3 : 3 + P].double(), value[1])
    written = kv_cache.isfinite().flatten(2).all(2).sum(1)
    assert written.tolist() == [2 * P, 2 * P]
    assert kv_cache.isnan().flatten(2).all(2).sum(1).tolist() == [40 - 2 * P, 40 - 2 * P]


def test_a_frame_without_a_slot_is_skipped(device: torch.device) -> None:
    """Tokens whose slots are outside the cache are not written, so that a wrong slot corrupts no other memory."""
    case = make("3d", FLOAT32, device, F=3)
    P, kv_cache = case.packed.shape[1], guarded(torch.zeros(2, 12, *case.packed.shape[3:], device=device))
    (query, key, value) = case.expected()
    case.run(append=Append(kv_cache, torch.tensor([-P, 12 - 4, 1 - P], device=device)))
    assert_close(case.packed[:, :, 0], query, TOLERANCE[FLOAT32])
    assert_close(kv_cache[0, 8:], key[1, :4], TOLERANCE[FLOAT32])
    assert_close(kv_cache[0, 0], key[2, -1], TOLERANCE[FLOAT32])
    assert torch.equal(kv_cache[1, 8:].double(), value[1, :4])
    assert (kv_cache[:, 1:8] == 0).all()


def test_float8_saturates_and_is_exact_where_it_can_be(device: torch.device) -> None:
    """Without a norm and a rotation values are only converted."""
    case = make("none", BFLOAT16, device, norm=False)
    levels = torch.tensor([0.0, 1.0, -1.75, 0.015625, 448.0, -448.0, 480.0, -1e4, 240.0, float("inf")])
    picked = torch.randint(len(levels), case.packed.shape, generator=torch.Generator().manual_seed(0))
    case.packed.copy_(levels[picked])
    F, P, _, H, D = case.packed.shape
    kv_cache = torch.zeros(2, F * P, H, D, device=device).to(FLOAT8)
    case.run(append=Append(kv_cache, torch.arange(F, device=device) * P))
    want = case.packed[:, :, 1:].float().clamp(-448, 448)
    assert torch.equal(kv_cache.float().view(2, F, P, H, D), want.permute(2, 0, 1, 3, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_pytorch_does_the_same(device: torch.device, without_triton: WithoutTriton, kind: str) -> None:
    """Where Triton cannot run, the reference accepts the same calls, also with frames that are only partly stored."""
    case = make(kind, FLOAT32, device, F=4)
    other = replace(case, packed=case.packed.clone())
    kv_cache = torch.zeros(2, 30, *case.packed.shape[3:], device=device)
    slots, kv_cache_want = torch.tensor([5, -9, 27, -3], device=device), kv_cache.clone()
    case.run(append=Append(kv_cache, slots))
    without_triton(qk_norm_rope)
    other.run(append=Append(kv_cache_want, slots))
    assert_close(case.packed, other.packed, TOLERANCE[FLOAT32])
    assert_close(kv_cache, kv_cache_want, TOLERANCE[FLOAT32])
    assert torch.equal(kv_cache == 0, kv_cache_want == 0)


def test_wrong_arguments_are_refused(device: torch.device) -> None:
    case = make("2d", BFLOAT16, device)
    norm, tables, packed = case.norm, case.tables, case.packed
    kv_cache = torch.zeros(2, 20, *packed.shape[3:], dtype=BFLOAT16, device=device)
    slots = torch.zeros(2, dtype=torch.int64, device=device)
    assert norm is not None
    assert tables is not None
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: qk_norm_rope(packed[:, :, :2], norm, tables), r"packed: expected \[F, P, 3, H, D\]"),
        (lambda: qk_norm_rope(packed[:0], norm, tables), "packed: expected a non-empty tensor"),
        (lambda: qk_norm_rope(packed[:, ::2], norm, tables), "packed: expected a contiguous tensor"),
        (lambda: qk_norm_rope(packed, None, None), "nothing to do"),
        (lambda: qk_norm_rope(packed, replace(norm, key_bias=norm.key_bias[1:]), None), r"key_bias: .* \[64\]"),
        (lambda: qk_norm_rope(packed, None, replace(tables, sin=tables.sin[:, 1:])), r"sin: expected .* \[1, 5, 32\]"),
        (lambda: qk_norm_rope(packed, None, replace(tables, cos=tables.cos.double())), "cos: expected torch.float32"),
        (lambda: qk_norm_rope(packed, norm, tables, query=packed[:, :, 0]), "query: expected a contiguous"),
        (lambda: qk_norm_rope(packed, norm, tables, query=packed[:, :, 0].float()), "query: expected torch.bfloat16"),
        (lambda: case.run(append=Append(kv_cache.float(), slots)), "kv_cache: expected torch.bfloat16 or torch.float8"),
        (lambda: case.run(append=Append(kv_cache[:, 1:], slots)), "kv_cache: expected a contiguous"),
        (lambda: case.run(append=Append(kv_cache[0], slots)), r"kv_cache: expected a non-empty tensor \[2, 0, 3, 64\]"),
        (lambda: case.run(append=Append(kv_cache, slots.int())), "slots: expected torch.int64"),
        (lambda: case.run(append=Append(kv_cache, slots[1:])), r"slots: expected a non-empty tensor \[2\]"),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()
    odd = torch.zeros(1, 1, 3, 1, 6, device=device)
    angle = torch.zeros(1, 1, 3, device=device)
    with pytest.raises(ValueError, match="D to be a multiple of 4, got 6"):
        qk_norm_rope(odd, None, RotaryTables(angle, angle, pairs=False))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("float8", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_full_size(device: torch.device, kind: str, float8: bool, dtype: torch.dtype) -> None:
    """37 x 27 patches and 6 special tokens, at slots whose element offsets exceed 32 bits."""
    case = make(kind, dtype, device, F=3, grid=(37, 27), H=16, special=6)
    _, P, _, H, D = case.packed.shape
    (query, key, value), stored = case.expected(), FLOAT8 if float8 else dtype
    # 2 x 2.2e6 x 1024 elements: up to 18 GB of float32.
    kv_cache = torch.empty(2, 2_200_000, H, D, dtype=stored, device=device)
    slots = torch.tensor([2_190_000, 7, 2_100_003], device=device)
    case.run(append=Append(kv_cache, slots))
    assert_close(case.packed[:, :, 0], query, TOLERANCE[dtype])
    for f, slot in enumerate(slots.tolist()):
        for part, want in zip(kv_cache[:, slot : slot + P], (key[f], value[f]), strict=True):
            # Half a unit in float8's last slot is up to 2^-4 of a number, its root mean square 2.6e-2.
            assert_close(part.float(), want, 3e-2 if float8 else TOLERANCE[dtype])


@pytest.mark.gpu
def test_float8_rounds_as_pytorch_does(device: torch.device) -> None:
    """Only on a GPU, because the interpreter rounds to float8 differently."""
    case = make("none", FLOAT32, device, F=3, grid=(37, 27), H=16, special=6, norm=False)
    case.packed.mul_(torch.logspace(-4, 3, case.packed.shape[-1], device=device))
    F, P, _, H, D = case.packed.shape
    kv_cache = torch.zeros(2, F * P, H, D, device=device).to(FLOAT8)
    case.run(append=Append(kv_cache, torch.arange(F, device=device) * P))
    want = case.packed[:, :, 1:].clamp(-448, 448).to(FLOAT8)
    assert torch.equal(kv_cache.float().view(2, F, P, H, D), want.float().permute(2, 0, 1, 3, 4))
