"""The choice of a backend, and the two faces of the interface."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

from glm_pto_kernels import wallx
from glm_pto_kernels.wallx import backends, csrc

X = torch.ones(2, 2)


def test_automatic_choice_on_the_cpu_is_the_reference():
    backends.use(None)
    assert backends.resolve(on_gpu=False) == "torch"


def test_an_explicit_choice_does_not_fall_back():
    with wallx.using("triton"), pytest.raises(RuntimeError, match="not on a GPU"):
        wallx.asym_dual_gmm_separated(X, X, X, X)
    with wallx.using("wallx_csrc"), pytest.raises(RuntimeError, match="no module of that name"):
        wallx.asym_dual_gmm_separated(X, X, X, X)
    wallx.asym_dual_gmm_separated(X, X, X, X)


def test_fp64_is_the_references():
    """The kernels sum in fp32; gradient checks need more."""
    with wallx.using("triton"), pytest.raises(TypeError, match="choose 'auto' or 'torch' for fp64"):
        wallx.asym_dual_gmm_separated(X.double(), X.double(), X.double(), X.double())
    with wallx.using("auto"):
        assert backends.resolve(on_gpu=True, double=True) == "torch"


@pytest.mark.parametrize(
    ("nvidia", "there", "taken"), [(True, True, "triton"), (False, True, "torch"), (True, False, "torch")]
)
def test_automatic_choice_on_a_gpu_needs_nvidias_and_triton(monkeypatch, nvidia, there, taken):
    monkeypatch.setattr(backends, "nvidia", lambda: nvidia)
    monkeypatch.setattr(backends, "installed", lambda module: there)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with wallx.using("auto"):
        assert backends.resolve(on_gpu=True) == taken
        assert backends.resolve(on_gpu=False) == "torch"
    if there:
        with wallx.using("triton"):
            assert backends.resolve(on_gpu=True) == "triton"


@pytest.mark.parametrize(("meanwhile", "kept"), [(False, 1), (True, 0)])
def test_a_plan_is_not_kept_where_another_thread_has_chosen_meanwhile(monkeypatch, meanwhile, kept):
    def taken():
        return "result"

    answers = iter((taken, lambda: "plan", None if meanwhile else taken))
    monkeypatch.setattr(backends, "implementation", lambda *_: next(answers))
    backends.PLANS.clear()
    assert backends.run("permute", ("numbers",), (X,)) == "result"
    assert len(backends.PLANS) == kept
    backends.PLANS.clear()


def test_unknown_names_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="expected one of auto, triton"):
        wallx.use("cuda")
    monkeypatch.setenv(backends.VARIABLE, "cuda")
    with pytest.raises(ValueError, match=backends.VARIABLE):
        backends.chosen()


def test_triton_is_not_imported_before_it_is_needed():
    code = "import sys, glm_pto_kernels.wallx.csrc; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_kernels_loaded_for_the_gpu_are_not_interpreted_later():
    code = """
import os, torch
os.environ.pop("TRITON_INTERPRET", None)
import glm_pto_kernels.wallx.triton
from glm_pto_kernels import wallx
os.environ["TRITON_INTERPRET"] = "1"
x = torch.ones(2, 2)
with wallx.using("triton"):
    wallx.permute(x, torch.zeros(2, 1, dtype=torch.int32), 0, [], 2)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "set it before Python starts" in done.stderr.splitlines()[-1]


def test_the_extension_is_called_as_it_expects(monkeypatch):
    """A stand-in extension: contiguous inputs, int32 ids, results copied to strided outputs."""

    class Extension:
        @staticmethod
        def asym_dual_gmm(a0, a1, b0, b1, o0, o1, trans_a, trans_b):
            assert all(t.is_contiguous() for t in (a0, a1, b0, b1, o0, o1))
            o0.copy_(a0 @ b0)
            o1.copy_(a1 @ b1)

        @staticmethod
        def permute(x, indices, rows, workspace, slots):
            assert indices.dtype == torch.int32
            assert isinstance(workspace, list)
            return x, indices, [*workspace, slots]

        @staticmethod
        def rope(q, k, cos, sin, q_out, k_out, sections):
            assert q_out is not q
            assert sections == [2, 0, 0]
            q_out.copy_(q + 1)
            k_out.copy_(k + 2)

        @staticmethod
        def rope_bwd(grad_q, grad_k, q, k, cos, sin, q_out, k_out, sections):
            assert grad_q.is_contiguous() and q_out is not grad_q
            q_out.fill_(8)
            k_out.fill_(9)

        @staticmethod
        def unpermute(y, row_id_map, weights, tokens, top_k):
            assert (tokens, top_k, weights.dtype) == (1, 2, torch.float32)
            return "weighted" if weights.numel() else "plain sum"

        @staticmethod
        def unpermute_bwd(grad, y, row_id_map, weights):
            assert weights.dtype == torch.float32 and weights.all()
            return tuple(weights.shape)

        @staticmethod
        def rope_index(ids, images, videos, seconds, mask, *numbers):
            assert images.tolist() == [[1, 2, 2]] and videos is seconds is mask is None
            return numbers[:3], numbers[3:]

        @staticmethod
        def rot_pos_emb(inv_freq, grid_thw, merge):
            return inv_freq.dtype, merge

        @staticmethod
        def get_window_index(grid_thw, merge, window, patch, unit):
            return grid_thw.dtype, (merge, window, unit)

    monkeypatch.setitem(sys.modules, "wallx_csrc", Extension)
    monkeypatch.setattr(backends, "resolve", lambda on_gpu, double: "wallx_csrc")
    backends.use(None)
    out = torch.zeros(2, 4)[:, ::2]
    wallx.asym_dual_gmm_separated(X.t(), X, X, X, out, torch.empty(2, 2))
    assert torch.equal(out, X @ X)
    assert csrc.permute(X, torch.zeros(2, 1, dtype=torch.long), 0, [], 9)[2] == [9]
    q, table = torch.zeros(1, 1, 2, 2), torch.zeros(3, 1, 2, 2)
    csrc.rope(q, q.clone(), table, table, q, q.clone(), [2, 0, 0])
    assert torch.equal(q, torch.ones_like(q))
    k = torch.zeros_like(q)
    csrc.rope(q, k, table, table, q, k, [2, 0, 0])
    assert torch.equal(k, torch.full_like(k, 2))
    csrc.rope_bwd(q, k, q, k, table, table, q, k, [2, 0, 0])
    assert (q == 8).all() and (k == 9).all()
    assert csrc.unpermute(X, torch.zeros(2, dtype=torch.int32), None, 1, 2) == "plain sum"
    assert csrc.unpermute(X, torch.zeros(2, dtype=torch.int32), X[:1].double(), 1, 2) == "weighted"
    assert csrc.unpermute_bwd(X, X, torch.zeros(2, dtype=torch.int32), None) == (2, 1)
    ids, grid = torch.zeros(1, 3, dtype=torch.long), torch.tensor([[1, 2, 2]])
    assert csrc.rope_index(ids, grid, None, None, None, 2, 7, 8, 9, 4) == ((2, 7, 8), (9, 4))
    assert csrc.rot_pos_emb(torch.ones(4).double(), grid, 2) == (torch.float32, 2)
    assert csrc.get_window_index(grid, 2, 4, 14, 4) == (torch.int32, (2, 4, 4))
    with pytest.raises(ValueError, match="no repeated bands"):
        wallx.apply_rope(q, k, table, table, [1, 0, 0], bands="repeated")
    with pytest.raises(ValueError, match="cannot mask"):
        wallx.permute(X, torch.zeros(2, 1, dtype=torch.int32), 0, [], 2, mask_negative=True)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("asym_dual_gmm", ["a0", "a1", "b0", "b1", "o0", "o1", "trans_a", "trans_b"]),
        ("permute", ["input", "indices", "num_out_tokens", "workspace", "max_expanded_token_num"]),
        ("unpermute", ["input", "row_id_map", "prob", "max_tokens", "num_topK"]),
        ("unpermute_bwd", ["input_bwd", "input_fwd", "row_id_map", "prob"]),
        ("rope", ["q", "k", "cos", "sin", "q_out", "k_out", "mrope_section_doubled"]),
        (
            "rope_bwd",
            ["grad_q_out", "grad_k_out", "q", "k", "cos", "sin", "grad_q", "grad_k", "mrope_section_doubled"],
        ),
        (
            "rope_index",
            [
                "input_ids",
                "image_grid_thw",
                "video_grid_thw",
                "second_per_grid_ts",
                "attention_mask",
                "spatial_merge_size",
                "image_token_id",
                "video_token_id",
                "vision_start_token_id",
                "tokens_per_second",
            ],
        ),
        ("rot_pos_emb", ["inv_freq", "grid_thw", "spatial_merge_size"]),
        (
            "get_window_index",
            [
                "grid_thw",
                "spatial_merge_size",
                "vit_merger_window_size",
                "patch_size",
                "spatial_merge_unit",
            ],
        ),
    ],
)
def test_the_raw_module_has_the_positional_arguments(name, arguments):
    positional = [
        p.name for p in inspect.signature(getattr(csrc, name)).parameters.values() if p.kind != p.KEYWORD_ONLY
    ]
    assert positional == arguments
    assert name in csrc.__all__


@pytest.mark.parametrize("name", csrc.__all__)
def test_the_raw_module_says_its_types(name):
    function = getattr(csrc, name)
    signature = inspect.signature(function)
    kinds = [p.annotation for p in signature.parameters.values()] + [signature.return_annotation]
    assert inspect.Signature.empty not in kinds
    assert function.__doc__


def test_the_raw_module_has_nothing_else():
    assert len(csrc.__all__) == 9


def test_a_call_is_planned_once_and_checked_again_when_anything_differs(place):
    """Repeated calls go straight to the kernel; the plan must not outlive what was checked."""
    if place.name == "torch":
        pytest.skip("the reference makes no plans")
    x = torch.randn(6, 8, device=place.device)
    ids = torch.tensor([[1], [0], [1], [0], [0], [1]], dtype=torch.int32, device=place.device)
    results = [wallx.permute(x, ids, 0, [], 6)[:2] for _ in range(2)]
    assert len(backends.PLANS) == 1
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    back = [wallx.unpermute(results[0][0], results[0][1], None, 6, 1) for _ in range(2)]
    assert len(backends.PLANS) == 2
    assert all(torch.equal(b, x) for b in back)
    with pytest.raises(TypeError, match="row_id_map must be int32"):
        wallx.unpermute(results[0][0], results[0][1].long(), None, 6, 1)
    with pytest.raises(ValueError, match="less than this call's"):
        wallx.permute(x, ids, 0, [], 5)
    strided = torch.randn(6, 16, device=place.device)[:, ::2]
    assert torch.equal(wallx.permute(strided, ids, 0, [], 6)[0], strided[[1, 3, 4, 0, 2, 5]])
    assert len(backends.PLANS) == 2
    wallx.use("torch")
    assert not backends.PLANS
