"""Launch a Triton kernel without Triton's dispatcher.

``fn[grid](...)`` inspects every argument at every call, 16-24 us of host time. The variants here are chosen
by keys that the operators build themselves, so a repeated call goes straight to the compiled kernel (about 5
us).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from glm_pto_kernels.wallx.backends import interpreting

# The compiled kernel's launch signature is Triton's own business; this is the release it was checked with.
DIRECT = triton.__version__.startswith("3.6.")
ALIGNMENT = 16


class Variant:
    """One kernel with its constants, for one device.

    Arguments are the tensors, then the integers, then the constants, in the kernel's own order. Integers are
    not specialised by Triton (``do_not_specialize``) and the compiled kernel assumes 16-byte addresses, so
    one binary serves every call of its key; anything else goes through the dispatcher.
    """

    def __init__(self, fn: Any, constants: dict[str, Any], device: int, **options: int) -> None:
        self.fn, self.constants, self.options, self.device = fn, constants, options, device
        self.values = tuple(constants.values())
        self.compiled: Any = None

    def __call__(self, grid: int, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        compiled = self.compiled
        if compiled is None:
            return self.dispatch(grid, tensors, numbers)
        addresses = [t.data_ptr() for t in tensors]
        low = 0
        for address in addresses:
            low |= address
        if low % ALIGNMENT or torch._C._cuda_getDevice() != self.device:
            return self.dispatch(grid, tensors, numbers)
        compiled.run(
            grid,
            1,
            1,
            torch._C._cuda_getCurrentRawStream(self.device),
            compiled.function,
            compiled.packed_metadata,
            None,
            None,
            None,
            *addresses,
            *numbers,
            *self.values,
        )
        return None

    def dispatch(self, grid: int, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        """Launch through Triton, and keep the binary where later calls may use it."""
        launch = self.fn[(grid,)]
        if interpreting():
            launch(*tensors, *numbers, **self.constants)
            return
        with torch.cuda.device(self.device):
            compiled = launch(*tensors, *numbers, **self.constants, **self.options)
        if DIRECT and all(t.data_ptr() % ALIGNMENT == 0 for t in tensors):
            self.compiled = compiled


class Kernel:
    """A Triton function and its variants by key."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.variants: dict[Hashable, Variant] = {}

    def variant(self, key: Hashable, device: int, constants: dict[str, Any], **options: int) -> Variant:
        made = self.variants[key] = Variant(self.fn, constants, device, **options)
        return made


MAX_TILE = 8192  # elements of a row tile: 64 a thread with four warps


def dense_rows(x: Tensor) -> Tensor:
    """``x`` [N, H] as it is where its rows are dense, else a dense copy."""
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def rows_per_program(row_bytes: int, tokens: int) -> int:
    """Rows of a program's tile: enough bytes to cover the latency, few enough to fill the chip."""
    return max(1, min(floor_power_of_2(16384 // max(row_bytes, 1)), floor_power_of_2(tokens // 256)))


def power_of_2(n: int) -> int:
    """The smallest power of two that is at least ``n``, and 1 at least."""
    return 1 << max(n - 1, 0).bit_length()


def floor_power_of_2(n: int) -> int:
    """The largest power of two that is at most ``n``; 0 for 0."""
    return 1 << (n.bit_length() - 1) if n > 0 else 0
