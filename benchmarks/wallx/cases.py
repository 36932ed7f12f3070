"""The operators, their shapes, and who computes them: ours, eager torch, torch.compile, and peers that are
installed.

Every case checks its results before anything is timed: ours against an fp32 reference on fresh inputs,
twice, with poisoned memory; peers by the same numbers, with the known differences named (Liger rotates other
bands, moe-ops permutes in another order).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from glm_pto_kernels import wallx
from glm_pto_kernels.wallx import reference

BF16 = torch.bfloat16
SECTIONS = [32, 48, 48]
Call = Callable[[], Any]


@dataclass
class Case:
    """One operator at one shape."""

    operator: str
    shape: str
    bytes: int
    calls: dict[str, Call]
    errors: dict[str, float] = field(default_factory=dict)
    small: bool = False


def peer(name: str) -> Any:
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def relative(actual: Tensor, exact: Tensor) -> float:
    """Norm of the error over the norm of the exact result; NaN never passes."""
    return ((actual.double() - exact.double()).norm() / exact.double().norm()).item()


def copy_of(size: int) -> Call:
    """A plain copy that moves ``size`` bytes, read and written together."""
    source = torch.empty(size // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def routing(tokens: int, top_k: int) -> Tensor:
    """int32 [T, K]: uniform over 2, 8 or 64 experts, distinct for one token."""
    experts = {1: 2, 2: 8, 8: 64}[top_k]
    return torch.rand(tokens, experts, device="cuda").topk(top_k).indices.to(torch.int32)


def rows(tokens: int, hidden: int) -> Tensor:
    return torch.randn(tokens, hidden, device="cuda").to(BF16)


def poison() -> None:
    """Leave NaN in the memory that the next outputs will take."""
    blocks = [torch.full((1 << 26,), float("nan"), device="cuda") for _ in range(4)]
    del blocks


def eager_permute(x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    tokens, top_k = ids.shape
    order = torch.argsort(ids.view(-1), stable=True)
    row_map = torch.empty(tokens * top_k, dtype=torch.int32, device=x.device)
    row_map[(order % top_k) * tokens + order // top_k] = torch.arange(
        tokens * top_k, dtype=torch.int32, device=x.device
    )
    return x.index_select(0, order // top_k), row_map


def permute_case(tokens: int, hidden: int, top_k: int) -> Case:
    ids, x = routing(tokens, top_k), rows(tokens, hidden)
    slots = tokens * top_k
    workspace: list[Tensor] = []

    def ours() -> Any:
        nonlocal workspace
        permuted, row_map, workspace = wallx.permute(x, ids, 0, workspace, slots)
        return permuted, row_map

    calls: dict[str, Call] = {"ours": ours, "copy": copy_of((tokens + slots) * hidden * 2)}
    calls["eager"] = lambda: eager_permute(x, ids)
    fast = compiled(eager_permute)
    calls["torch.compile"] = lambda: fast(x, ids)
    if moe := peer("moe_ops.permute_ops"):
        experts = {1: 2, 2: 8, 8: 64}[top_k]
        calls["moe-ops"] = lambda: moe.permute_countsort(x, ids, 0, experts)
    if extension := peer("wallx_csrc"):
        held: list[Tensor] = []

        def original() -> Any:
            nonlocal held
            permuted, row_map, held = extension.permute(x, ids, 0, held, slots)
            return permuted, row_map

        calls["wallx_csrc"] = original
    case = Case("permute", label(tokens, hidden, top_k), (tokens + slots) * hidden * 2, calls)
    case.small = tokens <= 6144
    for _ in range(2):
        x.copy_(rows(tokens, hidden))
        ids.copy_(routing(tokens, top_k))
        exact = reference.permute(x, ids, 0, False)
        poison()
        for name in ("ours", "eager", "torch.compile", "wallx_csrc"):
            if name in calls:
                permuted, row_map = calls[name]()
                same = torch.equal(permuted, exact[0]) and torch.equal(row_map, exact[1])
                case.errors[name] = 0.0 if same else float("inf")
    return case


def map_case(tokens: int, hidden: int) -> Case:
    """permute with a map that was made before."""
    ids, x = routing(tokens, 1), rows(tokens, hidden)
    row_map = wallx.permute(x, ids, 0, [], tokens)[1]
    order = torch.argsort(ids.view(-1), stable=True)
    calls: dict[str, Call] = {
        "ours": lambda: wallx.permute_with_map(x, row_map, tokens),
        "copy": copy_of(2 * tokens * hidden * 2),
        "index_select": lambda: x.index_select(0, order),
    }
    case = Case("permute, map given", label(tokens, hidden, 1), 4 * tokens * hidden, calls)
    case.small = tokens <= 6144
    for _ in range(2):
        x.copy_(rows(tokens, hidden))
        poison()
        for name in ("ours", "index_select"):
            case.errors[name] = 0.0 if torch.equal(calls[name](), x[order]) else float("inf")
    return case


def eager_unpermute(y: Tensor, row_map: Tensor, prob: Tensor | None, tokens: int, top_k: int) -> Tensor:
    picked = y[row_map.view(top_k, tokens).t()].float()
    if prob is not None:
        picked = picked * prob.unsqueeze(-1)
    return picked.sum(1).to(y.dtype)


def unpermute_case(tokens: int, hidden: int, top_k: int) -> Case:
    ids = routing(tokens, top_k)
    row_map = wallx.permute(torch.empty(tokens, 8, device="cuda"), ids, 0, [], ids.numel())[1]
    y, prob = rows(tokens * top_k, hidden), torch.rand(tokens, top_k, device="cuda")
    weights = prob if top_k > 1 else None
    moved = (tokens + tokens * top_k) * hidden * 2
    index = row_map.long()
    calls: dict[str, Call] = {
        "ours": lambda: wallx.unpermute(y, row_map, weights, tokens, top_k),
        "copy": copy_of(moved),
    }
    if top_k == 1:
        calls["index_select"] = lambda: y.index_select(0, index)
    else:
        calls["eager"] = lambda: eager_unpermute(y, row_map, weights, tokens, top_k)
        fast = compiled(eager_unpermute)
        calls["torch.compile"] = lambda: fast(y, row_map, weights, tokens, top_k)
    if moe := peer("moe_ops.unpermute_ops"):
        calls["moe-ops"] = lambda: moe.unpermute_forward(y, row_map, prob, tokens, top_k)
    if extension := peer("wallx_csrc"):
        calls["wallx_csrc"] = lambda: extension.unpermute(y, row_map, prob, tokens, top_k)
    case = Case("unpermute", label(tokens, hidden, top_k), moved, calls, small=tokens <= 6144)
    for _ in range(2):
        y.copy_(rows(tokens * top_k, hidden))
        prob.copy_(torch.rand_like(prob))
        if top_k == 1:
            prob.fill_(1)
        exact = reference.unpermute(y.float(), row_map, weights, tokens, top_k)
        poison()
        for name, call in calls.items():
            if name != "copy":
                case.errors[name] = relative(call(), exact)
    return case


def eager_bwd(grad: Tensor, y: Tensor, row_map: Tensor, prob: Tensor) -> tuple[Tensor, Tensor]:
    tokens, top_k = prob.shape
    index = row_map.view(top_k, tokens).t()
    wide = grad.float().unsqueeze(1)
    act = torch.empty_like(y)
    act[index.reshape(-1)] = (wide * prob.unsqueeze(-1)).to(y.dtype).reshape(-1, y.shape[1])
    return act, (wide * y[index].float()).sum(-1)


def bwd_case(tokens: int, hidden: int, top_k: int) -> Case:
    ids = routing(tokens, top_k)
    row_map = wallx.permute(torch.empty(tokens, 8, device="cuda"), ids, 0, [], ids.numel())[1]
    grad, y = rows(tokens, hidden), rows(tokens * top_k, hidden)
    prob = torch.rand(tokens, top_k, device="cuda")
    moved = (tokens + (1 if top_k == 1 else 2) * tokens * top_k) * hidden * 2
    calls: dict[str, Call] = {
        "ours": lambda: wallx.unpermute_bwd(grad, y, row_map, prob),
        "copy": copy_of(moved),
        "eager": lambda: eager_bwd(grad, y, row_map, prob),
    }
    fast = compiled(eager_bwd)
    calls["torch.compile"] = lambda: fast(grad, y, row_map, prob)
    if moe := peer("moe_ops.unpermute_ops"):
        calls["moe-ops"] = lambda: moe.unpermute_backward(grad, y, row_map, prob, tokens, top_k)
    if extension := peer("wallx_csrc"):
        calls["wallx_csrc"] = lambda: extension.unpermute_bwd(grad, y, row_map, prob)
    case = Case("unpermute_bwd", label(tokens, hidden, top_k), moved, calls, small=tokens <= 2048)
    for _ in range(2):
        grad.copy_(rows(tokens, hidden))
        y.copy_(rows(tokens * top_k, hidden))
        exact = reference.unpermute_bwd(grad.float(), y.float(), row_map, prob)
        poison()
        for name, call in calls.items():
            if name != "copy" and (name == "ours" or top_k > 1):
                act, weight = call()
                case.errors[name] = relative(act, exact[0])
                if top_k > 1:
                    case.errors[f"{name}, prob_grad, largest error"] = (weight - exact[1]).abs().max().item()
    return case


def eager_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, backward: bool) -> tuple[Tensor, Tensor]:
    return reference.apply_rope(q, k, cos, sin, SECTIONS, False, backward)


def rope_case(batch: int, length: int, backward: bool) -> Case:
    def heads(n: int) -> Tensor:
        """A transposed view, wall-x's real layout."""
        return torch.randn(batch, length, n, 128, device="cuda").to(BF16).transpose(1, 2)

    q, k = heads(16), heads(2)
    angle = torch.rand(3, batch, length, 64, device="cuda").repeat(1, 1, 1, 2) * 6.28
    cos, sin = angle.cos().to(BF16), angle.sin().to(BF16)
    moved = batch * length * 128 * 2 * (2 * 18 + 2)

    def ours() -> tuple[Tensor, Tensor]:
        q_out, k_out = torch.empty_like(q), torch.empty_like(k)
        if backward:
            wallx.rope_bwd(q, k, q, k, cos, sin, q_out, k_out, SECTIONS)
        else:
            wallx.rope(q, k, cos, sin, q_out, k_out, SECTIONS)
        return q_out, k_out

    fast = compiled(eager_rope)
    calls: dict[str, Call] = {
        "ours": ours,
        "copy": copy_of(moved),
        "eager": lambda: eager_rope(q, k, cos, sin, backward),
        "torch.compile": lambda: fast(q, k, cos, sin, backward),
    }
    if liger := peer("liger_kernel.ops.qwen2vl_mrope"):
        mine = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k)]
        turn = liger.qwen2vl_mrope_backward if backward else liger.qwen2vl_mrope_forward
        calls["Liger (other bands, in place)"] = lambda: turn(*mine, cos, sin, [16, 24, 24])
    if extension := peer("wallx_csrc"):

        def original() -> tuple[Tensor, Tensor]:
            dense = q.contiguous(), k.contiguous()
            outputs = torch.empty_like(dense[0]), torch.empty_like(dense[1])
            if backward:
                extension.rope_bwd(*dense, *dense, cos, sin, *outputs, SECTIONS)
            else:
                extension.rope(*dense, cos, sin, *outputs, SECTIONS)
            return outputs

        calls["wallx_csrc"] = original
    name = "rope_bwd" if backward else "rope"
    case = Case(name, f"B={batch} S={length}, views", moved, calls, small=batch == 1)
    for _ in range(2):
        q.copy_(torch.randn_like(q))
        k.copy_(torch.randn_like(k))
        exact = reference.apply_rope(*(t.double() for t in (q, k, cos, sin)), SECTIONS, False, backward)
        poison()
        for who, call in calls.items():
            if who != "copy" and not who.startswith("Liger"):
                case.errors[who] = max(relative(a, e) for a, e in zip(call(), exact, strict=True))
    return case


def gemm_case(first: int, second: int, trans_b: bool) -> Case:
    """2048 -> 11008 and 2048 -> 2048."""
    shapes = ((first, 11008), (second, 2048))
    inputs = [rows(m, 2048) for m, _ in shapes]
    weights = [torch.randn(2048, n, device="cuda").to(BF16) / 45 for _, n in shapes]
    if trans_b:
        weights = [w.t().contiguous() for w in weights]
    right = [w.t() if trans_b else w for w in weights]
    outputs = [torch.empty(m, n, dtype=BF16, device="cuda") for m, n in shapes]

    def two() -> list[Tensor]:
        for a, b, o in zip(inputs, right, outputs, strict=True):
            torch.mm(a, b, out=o)
        return outputs

    def ours() -> list[Tensor]:
        wallx.asym_dual_gmm_separated(*inputs, *weights, *outputs, trans_b=trans_b)
        return outputs

    calls: dict[str, Call] = {"ours": ours, "two torch.mm": two, "two torch.mm again": two}
    if extension := peer("wallx_csrc"):
        calls["wallx_csrc"] = lambda: (
            extension.asym_dual_gmm(*inputs, *weights, *outputs, False, trans_b),
            outputs,
        )[1]
    flops = sum(2 * m * 2048 * n for m, n in shapes)
    case = Case("dual GEMM", f"rows {first}+{second} {'NT' if trans_b else 'NN'}", flops, calls)
    for _ in range(2):
        for a in inputs:
            a.copy_(rows(*a.shape))
        exact = [a.float() @ b.float() for a, b in zip(inputs, right, strict=True)]
        for who, call in calls.items():
            for o in outputs:
                o.fill_(float("nan"))
            case.errors[who] = max(relative(a, e) for a, e in zip(call(), exact, strict=True))
    return case


MERGE, IMAGE, VIDEO, START = 2, 3, 4, 2


def position_cases() -> list[tuple[str, dict[str, Call]]]:
    """What a step works out once: 8 x 768 tokens with two images of 32 x 32 patches a sequence."""
    ids = torch.randint(10, 1000, (8, 768), device="cuda")
    for begin in (5, 300):
        ids[:, begin], ids[:, begin + 1 : begin + 257] = START, IMAGE
    grids, mask = torch.tensor([[1, 32, 32]] * 16, device="cuda"), torch.ones_like(ids)
    rates = 1e4 ** -(torch.arange(0, 40, 2, device="cuda") / 40)
    vision = reference.Vision(MERGE, IMAGE, VIDEO, START, 2.0)
    found: list[tuple[str, dict[str, Call]]] = [
        (
            "rope_index",
            {
                "ours": lambda: wallx.get_rope_index(
                    ids, grids, None, None, mask, MERGE, IMAGE, VIDEO, START, 2.0
                ),
                "torch": lambda: reference.rope_index(ids, grids, None, None, mask, vision),
            },
        ),
        (
            "rot_pos_emb",
            {
                "ours": lambda: wallx.rot_pos_emb(rates, grids, MERGE),
                "torch": lambda: reference.rot_pos_emb(rates, grids, MERGE),
            },
        ),
        (
            "get_window_index",
            {
                "ours": lambda: wallx.get_window_index(grids, MERGE, 4, 14, MERGE**2),
                "torch": lambda: reference.get_window_index(grids, MERGE, 4, MERGE**2),
            },
        ),
    ]
    if extension := peer("wallx_csrc"):
        found[0][1]["wallx_csrc"] = lambda: extension.rope_index(
            ids, grids, None, None, mask, MERGE, IMAGE, VIDEO, START, 2.0
        )
        found[1][1]["wallx_csrc"] = lambda: extension.rot_pos_emb(rates, grids, MERGE)
        found[2][1]["wallx_csrc"] = lambda: extension.get_window_index(
            grids.to(torch.int32), MERGE, 4, 14, MERGE**2
        )
    for name, calls in found:
        results = [x if isinstance(x, tuple) else (x,) for x in (calls["ours"](), calls["torch"]())]
        if not all(torch.equal(a, b) for a, b in zip(*results, strict=True)):
            raise AssertionError(f"{name} differs from its reference")
    return found


def label(tokens: int, hidden: int, top_k: int) -> str:
    return f"T={tokens} H={hidden} K={top_k}"


LENGTHS = (512, 2048, 6144, 16384, 65536)


def memory_cases(quick: bool) -> list[Callable[[], Case]]:
    """Every case as a function, so that its memory is free again after it."""
    tokens = LENGTHS[:3] if quick else LENGTHS
    made: list[Callable[[], Case]] = []
    made += [lambda t=t: permute_case(t, 2048, 1) for t in tokens]
    made += [lambda: permute_case(4096, 4096, 2), lambda: permute_case(4096, 4096, 8)]
    made += [lambda t=t: map_case(t, 2048) for t in tokens]
    made += [lambda t=t: unpermute_case(t, 2048, 1) for t in tokens]
    made += [lambda: unpermute_case(4096, 4096, 2), lambda: unpermute_case(4096, 4096, 8)]
    made += [lambda: unpermute_case(4099, 2056, 2), lambda: permute_case(6143, 2040, 1)]
    made += [lambda t=t: bwd_case(t, 2048, 1) for t in tokens[:3]]
    made += [lambda t=t: bwd_case(t, 2048, 2) for t in (512, 2048, 6144) + (() if quick else (65536,))]
    made += [lambda: bwd_case(4096, 4096, 8)]
    for backward in (False, True):
        made += [
            lambda s=s, b=backward: rope_case(*s, b)
            for s in ((1, 768), (8, 768)) + (() if quick else ((8, 2048),))
        ]
    return made


GEMM_ROWS = ((448, 32), (2048, 64), (6144, 256), (16384, 1024))
