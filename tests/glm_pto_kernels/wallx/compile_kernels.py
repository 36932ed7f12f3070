"""``python compile_kernels.py MAJOR MINOR``: compile the Triton kernels for a capability, without a GPU.

The operators run on fake CUDA tensors with shapes, strides and types as usual, and each launch compiles its
kernel down to machine code instead. Prints as JSON, by kernel, how many variants were compiled, how many of
them fetch memory ahead, and the most shared memory that one takes. The kernel that loads tiles by tensor maps
is left out: its arguments are made by the driver.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from collections import defaultdict
from typing import Any

import torch
import triton
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

OLD = triton.__version__.startswith("3.2.")
# As in a build without CUDA, whatever is installed: memory comes from torch.empty, which fakes it.
torch.version.cuda = None
FakeTensor.data_ptr = lambda self: 0
NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}
found: dict[str, dict[str, int]] = defaultdict(lambda: {"variants": 0, "ahead": 0, "shared": 0})


def compile_instead(target: GPUTarget) -> Any:
    seen = set()

    def dispatch(variant: Any, grid: int, tensors: Any, numbers: Any) -> None:
        if id(variant) in seen:
            return
        seen.add(id(variant))
        names = variant.fn.arg_names
        types = [f"*{NAMES[t.dtype]}" for t in tensors] + ["i32"] * len(numbers)
        signature = dict(zip(names, types, strict=False)) | dict.fromkeys(variant.constants, "constexpr")
        assert list(signature) == list(names), (variant.fn, names, list(signature))
        if OLD:
            plain = {name: kind for name, kind in signature.items() if kind != "constexpr"}
            source = ASTSource(variant.fn, plain, dict(variant.constants))
        else:
            values = {(names.index(name),): value for name, value in variant.constants.items()}
            aligned = {(at,): [["tt.divisibility", 16]] for at in range(len(tensors))}
            source = ASTSource(variant.fn, signature, values, aligned)
        compiled = triton.compile(source, target=target, options=dict(variant.options))
        entry = found[variant.fn.__name__]
        entry["variants"] += 1
        entry["ahead"] += "cp.async.bulk.prefetch" in compiled.asm["ptx"]
        entry["shared"] = max(entry["shared"], compiled.metadata.shared)

    return dispatch


class Grids:
    """A fake tensor whose values are known on the host."""

    def __init__(self, values: list[list[int]]) -> None:
        self.values, self.fake = values, torch.empty(len(values), 3, dtype=torch.int64, device="cuda")

    def tolist(self) -> list[list[int]]:
        return self.values

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fake, name)


def made(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="cuda")


def permutes(kernels: Any, scatter: Any) -> None:
    for tokens, hidden, top_k in ((512, 2048, 1), (4096, 4096, 8), (70000, 72, 8), (9, 9000, 2)):
        for masked, dtype in ((False, torch.int32), (True, torch.int64)):
            kernels.permute(made(tokens, hidden), made(tokens, top_k, dtype=dtype), 0, masked)
        row_map = made(tokens * top_k, dtype=torch.int32)
        for complete in (True, False):
            scatter.is_complete = lambda row_map, rows, known=complete: known
            scatter.permute_with_map(made(tokens, hidden), row_map, tokens * top_k, top_k)
            prob = made(tokens, top_k, dtype=torch.float32)
            scatter.unpermute_bwd(made(tokens, hidden), made(tokens * top_k, hidden), row_map, prob)


def unpermutes(unpermute: Any) -> None:
    for tokens, hidden, top_k, dtype in (
        (512, 2048, 1, torch.bfloat16),
        (6144, 2048, 1, torch.float16),
        (20000, 2048, 1, torch.float32),
        (512, 4096, 2, torch.float32),
        (4096, 4096, 2, torch.bfloat16),
        (9000, 72, 3, torch.float16),
        (4096, 4096, 8, torch.bfloat16),
    ):
        row_map = made(tokens * top_k, dtype=torch.int32)
        for prob in (made(tokens, top_k, dtype=torch.float32), None):
            unpermute.unpermute(made(tokens * top_k, hidden, dtype=dtype), row_map, prob, tokens, top_k)


def ropes(rope: Any) -> None:
    for heads, kv, dim, sections in (
        (16, 2, 128, (16, 24, 24)),
        (4, 4, 80, (10, 15, 15)),
        (3, 1, 72, (12, 12, 12)),
    ):
        for backward in (False, True):
            q, k = made(2, 7, heads, dim).transpose(1, 2), made(2, 7, kv, dim).transpose(1, 2)
            cos = made(3, 2, 7, dim)
            rope.rope(q, k, cos, cos, q, k, sections, False, backward)


def positions(rope_index: Any, patch_grids: Any) -> None:
    rope_index.require_on = lambda fits: None
    vision = importlib.import_module("glm_pto_kernels.wallx.reference").Vision(2, 3, 4, 2, 2.0)
    ids, grids = made(2, 700, dtype=torch.int64), made(4, 3, dtype=torch.int64)
    for mask in (None, torch.ones_like(ids)):
        rope_index.rope_index(ids, grids, None, None, mask, vision)
        rope_index.rope_index(ids, grids, grids, made(4, dtype=torch.float32), mask, vision)
    known = Grids([[1, 32, 32], [2, 8, 12]])
    patch_grids.rot_pos_emb(made(20, dtype=torch.float32), known, 2)
    patch_grids.get_window_index(known, 2, 4, 4)


def products(dual_gemm: Any) -> None:
    dual_gemm.can_describe = lambda like: False
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for (m, n, k), trans_a, trans_b in itertools.product(
            ((64, 96, 32), (65, 97, 33)), (False, True), (False, True)
        ):
            a = made(*((k, m) if trans_a else (m, k)), dtype=dtype)
            b = made(*((n, k) if trans_b else (k, n)), dtype=dtype)
            o = made(m, n, dtype=dtype)
            dual_gemm.dual_gemm(a, a, b, b, o, o, trans_a, trans_b)


def main() -> None:
    major, minor = int(sys.argv[1]), int(sys.argv[2])
    torch.cuda.get_device_capability = lambda device=None: (major, minor)
    names = ("launch", "permute", "scatter", "unpermute", "rope", "rope_index", "patch_grids", "dual_gemm")
    package = "glm_pto_kernels.wallx.triton"
    modules = {name: importlib.import_module(f"{package}.{name}") for name in names}
    modules["launch"].Variant.dispatch = compile_instead(GPUTarget("cuda", 10 * major + minor, 32))
    modules["permute"].mark_complete = lambda row_map, rows: None
    with FakeTensorMode():
        permutes(modules["permute"], modules["scatter"])
        unpermutes(modules["unpermute"])
        ropes(modules["rope"])
        positions(modules["rope_index"], modules["patch_grids"])
        products(modules["dual_gemm"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
