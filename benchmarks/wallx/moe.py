"""permute, with and without a map, unpermute and its backward."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from benchmarks.wallx.case import Call, Case, compiled, copy_of, label, peer, poison, routing, rows
from benchmarks.wallx.targets import PROB_GRAD
from glm_pto_kernels import wallx
from glm_pto_kernels.wallx import reference


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
    for _ in range(2):
        x.copy_(rows(tokens, hidden))
        ids.copy_(routing(tokens, top_k))
        exact = reference.permute(x, ids, 0, False)
        poison()
        for name in ("ours", "eager", "torch.compile", "wallx_csrc"):
            if name in calls:
                permuted, row_map = calls[name]()
                same = torch.equal(permuted, exact[0]) and torch.equal(row_map, exact[1])
                case.wrong_by(name, 0.0 if same else math.inf)
    return case


def map_case(tokens: int, hidden: int, top_k: int, known: bool = True) -> Case:
    """permute with a map that was made before. Not known: where it comes from, so it may leave rows out."""
    ids, x = routing(tokens, top_k), rows(tokens, hidden)
    slots = tokens * top_k
    row_map = wallx.permute(x, ids, 0, [], slots)[1]
    order = torch.argsort(ids.view(-1), stable=True) // top_k
    # A tensor that permute did not return is searched for rows that it leaves out.
    row_map = row_map if known else row_map.clone()
    calls: dict[str, Call] = {
        "ours": lambda: wallx.permute_with_map(x, row_map, slots, top_k),
        "copy": copy_of((tokens + slots) * hidden * 2),
        "index_select": lambda: x.index_select(0, order),
    }
    name = "permute, map given" if known else "permute, unknown map"
    case = Case(name, label(tokens, hidden, top_k), (tokens + slots) * hidden * 2, calls)
    for _ in range(2):
        x.copy_(rows(tokens, hidden))
        poison()
        for name in ("ours", "index_select"):
            case.wrong_by(name, 0.0 if torch.equal(calls[name](), x[order]) else math.inf)
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
    case = Case("unpermute", label(tokens, hidden, top_k), moved, calls)
    for _ in range(2):
        y.copy_(rows(tokens * top_k, hidden))
        prob.copy_(torch.rand_like(prob))
        if top_k == 1:
            prob.fill_(1)
        exact = reference.unpermute(y.float(), row_map, weights, tokens, top_k)
        poison()
        for name, call in calls.items():
            if name != "copy":
                case.compare(name, [call()], [exact])
    return case


def eager_bwd(grad: Tensor, y: Tensor, row_map: Tensor, prob: Tensor) -> tuple[Tensor, Tensor]:
    tokens, top_k = prob.shape
    index = row_map.view(top_k, tokens).t()
    if top_k == 1:
        # The operator does not use prob then: no product, and nothing to read y for.
        act = torch.empty_like(y)
        act[index[:, 0]] = grad
        return act, torch.zeros_like(prob)
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
    # With K = 1 moe-ops works out a gradient for prob all the same.
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
    case = Case("unpermute_bwd", label(tokens, hidden, top_k), moved, calls)
    for _ in range(2):
        grad.copy_(rows(tokens, hidden))
        y.copy_(rows(tokens * top_k, hidden))
        if top_k == 1:
            prob.fill_(1)
        exact = reference.unpermute_bwd(grad.float(), y.float(), row_map, prob)
        poison()
        for name, call in calls.items():
            if name != "copy":
                act, weight = call()
                case.compare(name, [act], exact[:1])
                if top_k > 1 or name == "ours":
                    case.wrong_by(f"{name}, {PROB_GRAD}", (weight - exact[1]).abs().max().item())
    return case
