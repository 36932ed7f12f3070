"""Launch a kernel that takes tensor descriptors, encoding each descriptor once.

Encoding one costs about 3 us of host time, and a dual GEMM has eight. What is encoded depends on address,
shape, strides and block alone, so it is kept by these; the caching allocator gives the same addresses again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glm_pto_kernels.wallx.cuda.driver import bind
from glm_pto_kernels.wallx.relaunch import Launch, again
from glm_pto_kernels.wallx.triton.launch import DIRECT, direct_launch

Described = tuple[Tensor, list[int]]
MOST = 4096  # encoded descriptors that are kept, 128 bytes each

_launchers: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...], Any]] = {}
_encoded: dict[tuple[Any, ...], list[Any]] = {}


def launch_described(
    fn: Any,
    grid: int,
    described: Sequence[Described],
    numbers: Sequence[int],
    constants: Sequence[Any],
    **options: int,
) -> Launch | None:
    """``fn[(grid,)](*descriptors, *numbers, *constants)``.

    Returns what ``again`` needs to launch the same with the same addresses, shapes and strides.
    """
    first = described[0][0]
    device = first.get_device()
    key = (fn, device, first.dtype, *constants, *options.values())
    found = _launchers.get(key)
    if found is None or torch._C._cuda_getDevice() != device:
        compiled = dispatch(fn, grid, described, numbers, constants, device, options)
        if DIRECT:
            launcher, fixed = direct_launch(compiled)
            if launcher is not None:
                _launchers[key] = (unwrapped(launcher), fixed, compiled.metadata.tensordesc_meta)
        return None
    launcher, fixed, metadata = found
    arguments: list[Any] = []
    for (x, block), meta in zip(described, metadata, strict=True):
        arguments += encoded(x, block, meta)
    launch = (launcher, (*fixed, *arguments, *numbers, *constants), grid)
    again(launch, device)
    return launch


def dispatch(
    fn: Any,
    grid: int,
    described: Sequence[Described],
    numbers: Sequence[int],
    constants: Sequence[Any],
    device: int,
    options: dict[str, int],
) -> Any:
    """Launch through Triton; returns the compiled kernel."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    descriptors = [TensorDescriptor(x, list(x.shape), list(x.stride()), block) for x, block in described]
    with torch.cuda.device(device):
        bind(device)
        return fn[(grid,)](*descriptors, *numbers, *constants, **options)


def unwrapped(launch: Any) -> Any:
    """The C function inside Triton's wrapper, which encodes descriptors at every call."""
    cells = dict(zip(launch.__code__.co_freevars, launch.__closure__, strict=True))
    return cells["launcher"].cell_contents


def encoded(x: Tensor, block: list[int], meta: Any) -> list[Any]:
    """The arguments that a descriptor becomes: the encoded map, the shape, the strides."""
    shape, strides = x.shape, x.stride()
    key = (x.data_ptr(), shape, strides, *block, x.dtype, meta["swizzle"])
    kept = _encoded.get(key)
    if kept is None:
        from triton.backends.nvidia.driver import make_tensordesc_arg
        from triton.tools.tensor_descriptor import TensorDescriptor

        if len(_encoded) >= MOST:
            _encoded.clear()
        bind(x.get_device())  # encoding asks for a context, which a thread new to torch has not
        kept = make_tensordesc_arg(TensorDescriptor(x, list(shape), list(strides), block), meta)
        _encoded[key] = kept
    return kept
