"""The ``upstream`` backend: kernels of the user's own checkout, called by the names of their parameters.

Upstream moved arguments (the gate's order) and added some (attention's softmax scale and tiles), so every
call goes by name. A value that a kernel does not take must be the one that it assumes, else the call is
refused.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from glm_pto_kernels import checkout
from glm_pto_kernels.backends import BackendError, Kernel

EPS = 1e-5


def _exact(**wanted: int) -> Callable[..., str | None]:
    def refusal(**sizes: int) -> str | None:
        for name, value in wanted.items():
            if sizes[name] != value:
                return "upstream's kernel is for GLM-4.5 on 8 ranks only"
        return None

    return refusal


# The sizes that upstream's kernels assert or were written for.
SIZES = {
    "gate": _exact(hidden=5120, experts=160),
    "select_experts": _exact(experts=160, top_k=8),
    "paged_attention": _exact(heads=12, kv_heads=1, head_dim=128, block_size=128),
    "attention_pre": _exact(hidden=5120, q_size=1536, kv_size=128, head_dim=128, rotary_dim=64),
    "shared_expert": _exact(hidden=5120, intermediate=192),
}


def load(operator: str) -> Kernel:
    """The recorded checkout's kernel for an operator, under our parameters.

    Raises:
        BackendError: no record, files that changed since, or a checkout that does not import.
    """
    try:
        known = checkout.recorded()
    except checkout.CheckoutError as error:
        raise BackendError(str(error)) from error
    if known is None or operator not in known.kernels:
        raise BackendError(
            f"{operator}: GLM_PTO_BACKEND=upstream, and no checkout is recorded in {checkout.record_path()}; "
            "run: glm-pto kernels import DIR"
        )
    changes = checkout.changed(known)
    if changes:
        raise BackendError("\n".join([*changes, "run: glm-pto kernels import DIR again"]))
    kernel = known.kernels[operator]
    module = _import(Path(known.folder), kernel.file, operator)
    return _by_name(operator, module, kernel)


def _import(folder: Path, file: str, operator: str) -> ModuleType:
    name = f"_glm_pto_upstream_{Path(file).stem}"
    spec = importlib.util.spec_from_file_location(name, folder / file)
    if spec is None or spec.loader is None:
        raise BackendError(f"{operator}: {folder / file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _its_imports(folder):
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise BackendError(f"{operator}: {folder / file} is broken here: {error!r}") from error
    return module


@contextmanager
def _its_imports(folder: Path) -> Iterator[None]:
    """Let the checkout import its neighbours and its ``utils``, whatever else has these names here."""
    theirs = {"utils", *(path.stem for path in folder.glob("glm_*.py"))}
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in theirs}
    # A namespace package in some releases, which any installed `utils` would hide.
    utils = ModuleType("utils")
    utils.__path__ = [str(folder / "utils")]
    sys.modules["utils"] = utils
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] in theirs]:
            del sys.modules[name]
        sys.modules.update(kept)


def _by_name(operator: str, module: ModuleType, kernel: checkout.Kernel) -> Kernel:
    from glm_pto_kernels.backends import OPERATORS

    function = getattr(module, kernel.function)
    ours, theirs = OPERATORS[operator].parameters, kernel.parameters

    def call(*arguments: Any) -> None:
        values = dict(zip(ours, arguments, strict=True))
        PREPARE[operator](values, theirs, module)
        function(**{name: values[name] for name in theirs})

    return call


def _gate(values: dict[str, Any], theirs: tuple[str, ...], module: ModuleType) -> None:
    return None


def _select_experts(values: dict[str, Any], theirs: tuple[str, ...], module: ModuleType) -> None:
    values["e_score_correction_bias"] = values["e_score_correction_bias"].to(torch.bfloat16)


def _paged_attention(values: dict[str, Any], theirs: tuple[str, ...], module: ModuleType) -> None:
    query, keys = values["query"], values["key_cache"]
    if "softmax_scale" not in theirs and abs(values["softmax_scale"] - query.shape[2] ** -0.5) > 1e-6:
        raise BackendError(
            f"paged_attention: this checkout's kernel assumes a softmax scale of 1 / sqrt({query.shape[2]}), "
            f"the model's is {values['softmax_scale']}"
        )
    if "tile_config" in theirs:
        values["tile_config"] = _tiles(module, query.shape[1] // keys.shape[2])


def _tiles(module: ModuleType, group: int) -> Any:
    config = getattr(module, "IfaTileShapeConfig", None)
    fields = tuple(getattr(config, "__dataclass_fields__", ()))
    wanted = ("g_tile", "s2_tile", "c1_tile_shape", "v1_tile_shape", "c2_tile_shape", "v2_tile_shape")
    if config is None or fields != wanted:
        raise BackendError(
            f"paged_attention: the kernel wants a tile_config, and its module's IfaTileShapeConfig has "
            f"{', '.join(fields) or 'no fields'} where {', '.join(wanted)} were expected"
        )
    cube = [[128, 128], [128, 128], [128, 128]]
    return config(
        g_tile=group,
        s2_tile=512,
        c1_tile_shape=cube,
        v1_tile_shape=[128, 512],
        c2_tile_shape=cube,
        v2_tile_shape=[128, 128],
    )


def _attention_pre(values: dict[str, Any], theirs: tuple[str, ...], module: ModuleType) -> None:
    if "eps" not in theirs and values["eps"] != EPS:
        raise BackendError(
            f"attention_pre: this checkout's kernel assumes eps {EPS}, the model's is {values['eps']}"
        )
    hidden = values["hidden_states"]
    if values["residual"] is None:
        values["residual"] = torch.zeros_like(hidden)
    for name in ("input_layernorm", "atten_q_norm", "atten_k_norm"):
        if values[f"{name}_bias"] is None:
            values[f"{name}_bias"] = torch.zeros_like(values[f"{name}_weight"])


def _shared_expert(values: dict[str, Any], theirs: tuple[str, ...], module: ModuleType) -> None:
    for name in ("w13_scale", "w2_scale"):
        values[name] = values[name].to(torch.bfloat16)


# What a kernel wants otherwise than we hold it, per operator; changes ``values`` in place.
PREPARE = {
    "gate": _gate,
    "select_experts": _select_experts,
    "paged_attention": _paged_attention,
    "attention_pre": _attention_pre,
    "shared_expert": _shared_expert,
}
