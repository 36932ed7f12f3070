"""Launch a Triton kernel without Triton's dispatcher.

``fn[grid](...)`` inspects every argument at every call, 16-24 us of host time. The variants here are chosen
by keys that the operators build themselves, so a repeated call goes straight to the compiled kernel (about 5
us).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial, reduce
from itertools import accumulate
from operator import or_
from typing import Any

import torch
import triton
from torch import Tensor
from torch._C._dynamo.guards import _empty_strided_cuda

# The compiled kernel's launch signature is Triton's own business; this is the release it was checked with.
DIRECT = triton.__version__.startswith("3.6.") and torch.version.cuda is not None
ALIGNMENT = 16


class Variant:
    """One kernel with its constants, for one device.

    Arguments are the tensors, then the integers, then the constants, in the kernel's order. Triton does not
    specialise the integers (``do_not_specialize``) and the compiled kernel assumes 16-byte addresses, so one
    binary serves every call of its key; anything else goes through the dispatcher.
    """

    def __init__(
        self, fn: Any, constants: dict[str, Any], device: int, rows: int, blocks: int, options: dict[str, int]
    ) -> None:
        self.fn, self.constants, self.options, self.device = fn, constants, options, device
        self.rows, self.blocks = rows, blocks
        self.values = tuple(constants.values())
        self.launcher: Any = None
        self.fixed: tuple[Any, ...] = ()

    def __call__(self, grid: int, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        self.bound(grid, numbers)(*tensors)

    def bound(self, grid: int, numbers: Sequence[int]) -> Callable[..., None]:
        """The launch of any tensors with this grid and these integers."""
        device, last = self.device, (*numbers, *self.values)

        def launch(*tensors: Tensor) -> None:
            launcher = self.launcher
            if launcher is None:
                return self.dispatch(grid, tensors, numbers)
            addresses = [t.data_ptr() for t in tensors]
            if reduce(or_, addresses) % ALIGNMENT or _current_device() != device:
                return self.dispatch(grid, tensors, numbers)
            launcher(grid, 1, 1, _current_stream(device), *self.fixed, *addresses, *last)
            return None

        return launch

    def producing(
        self, grid: int, numbers: Sequence[int], like: Tensor, shape: tuple[int, ...]
    ) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
        """The launch of any three tensors and of dense memory of this shape, which it makes and returns.

        Where the third is None the kernel does not use it and gets the second's address. ``bound`` with
        ``new_rows``, written out for an operator that takes no longer than its launch: a list, a reduction
        and two more calls would cost it a seventh of its time on the host.
        """
        launch, rows = self.bound(grid, numbers), new_rows(like, *shape)
        device, last = self.device, (*numbers, *self.values)
        memory = (shape, dense_strides(shape), like.dtype)

        def run(first: Tensor, second: Tensor, third: Tensor | None) -> Tensor:
            launcher = self.launcher
            one, two = first.data_ptr(), second.data_ptr()
            three = two if third is None else third.data_ptr()
            if launcher is None or (one | two | three) % ALIGNMENT or _current_device() != device:
                out = rows()
                launch(first, second, second if third is None else third, out)
                return out
            out = _empty_strided_cuda(*memory)
            stream, four = _current_stream(device), out.data_ptr()
            launcher(grid, 1, 1, stream, *self.fixed, one, two, three, four, *last)
            return out

        return run

    def grid(self, rows: int) -> int:
        """Programs for so many rows: ``self.rows`` and one of ``self.blocks`` column blocks each."""
        return -(-rows // self.rows) * self.blocks

    def dispatch(self, grid: int, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        """Launch through Triton, and keep the binary where later calls may use it."""
        launch = self.fn[(grid,)]
        if not isinstance(self.fn, triton.JITFunction):
            launch(*tensors, *numbers, **self.constants)
            return
        if not tensors[0].is_cuda:
            raise RuntimeError(
                "the wall-x kernels were loaded for the GPU before TRITON_INTERPRET=1 was set; "
                "set it before Python starts, or choose the backend 'auto' or 'torch'"
            )
        with torch.cuda.device(self.device):
            compiled = launch(*tensors, *numbers, **self.constants, **self.options)
        if DIRECT and all(t.data_ptr() % ALIGNMENT == 0 for t in tensors):
            # Another thread may call between the two: what it finds a launcher by comes last.
            launcher, self.fixed = direct_launch(compiled)
            self.launcher = launcher


@cache
def hopper(device: int) -> bool:
    """Whether a GPU has Hopper's engine that copies memory in bulk: Hopper or newer."""
    return torch.cuda.get_device_capability(device)[0] >= 9


@cache
def large_shared_memory(device: int) -> bool:
    """Whether a program may have 160 KiB, or needs little, as before Ampere. Elsewhere it may have 99."""
    major, minor = torch.cuda.get_device_capability(device)
    return major < 12 and (major, minor) not in ((8, 6), (8, 9))


_current_device = torch._C._cuda_getDevice if torch.version.cuda else None
_current_stream = torch._C._cuda_getCurrentRawStream if torch.version.cuda else None


def direct_launch(compiled: Any) -> tuple[Any, tuple[Any, ...]]:
    """The compiled kernel's own launch function, and its arguments between the stream and the kernel's.

    None where the kernel needs scratch memory, which only Triton's launcher provides.
    """
    run = compiled.run
    if run.global_scratch_size or run.profile_scratch_size:
        return None, ()
    options = (run.launch_cooperative_grid, run.launch_pdl, None, None)
    return run.launch, (compiled.function, *options, compiled.packed_metadata, None, None, None)


class Kernel:
    """A Triton function and its variants by key."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.variants: dict[Hashable, Variant] = {}

    def variant(
        self,
        key: Hashable,
        device: int,
        constants: dict[str, Any],
        rows: int = 1,
        blocks: int = 1,
        **options: int,
    ) -> Variant:
        made = self.variants[key] = Variant(self.fn, constants, device, rows, blocks, options)
        return made


MAX_TILE = 8192  # elements of a row tile: 64 a thread with four warps
MAX_ROWS = 16


def rows_for(tile_bytes: int, row_bytes: int) -> int:
    """How many rows, a power of two, make a tile of about so many bytes."""
    return max(1, min(MAX_ROWS, floor_power_of_2(tile_bytes // max(row_bytes, 1))))


def mark_complete(row_map: Tensor, rows: int) -> None:
    """Note on a map that it names each of ``rows`` rows once, as long as nobody writes into it.

    The version counts writes, the address tells other memory (``map.data = ...``). A write past the counter
    (``map.data[0] = ...``, a numpy or dlpack alias) is not noticed.
    """
    where = capture(row_map)
    if where is not None and not row_map.is_inference():
        row_map.glm_pto_rows = (rows, row_map._version, row_map.data_ptr(), where)  # type: ignore[attr-defined]


def is_complete(row_map: Tensor, rows: int) -> bool:
    """Whether every one of ``rows`` rows is known to be named, without looking at the map on the device.

    In a graph capture only where the map was made in the same one: a replay may find another map at the
    address of one from outside. And outside not where it was made in one: nothing has run yet.
    """
    note = getattr(row_map, "glm_pto_rows", None)
    if note is None or row_map.is_inference():
        return False
    return bool(note == (rows, row_map._version, row_map.data_ptr(), capture(row_map)))


def capture(like: Tensor) -> int | None:
    """The graph capture that the current stream is in: its number, 0 outside, None where that is unknown, as
    for another device than the current one.
    """
    if not like.is_cuda:
        return 0
    if torch.cuda.current_device() != like.get_device():
        return None
    if not torch.cuda.is_current_stream_capturing():
        return 0
    status, number = ctypes.c_int(), ctypes.c_uint64()
    stream = ctypes.c_void_p(torch.cuda.current_stream(like.device).cuda_stream)
    asked = capture_info()
    if asked is None or asked(stream, ctypes.byref(status), ctypes.byref(number), None, None, None):
        return None
    return number.value or None


@cache
def capture_info() -> Any:
    """The driver's function that knows the capture of a stream; CUDA 11.3 and later."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo_v2
    except (OSError, AttributeError):
        return None


def dense_rows(x: Tensor) -> Tensor:
    """``x`` [N, H] as it is where its rows are dense, else a dense copy."""
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def new_rows(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Callable[[], Tensor]:
    """What makes dense memory of this shape, on the device and, if none is named, of the type of ``like``.

    On the current GPU by the call that torch.compile's programs allocate with, which takes half the host
    time of ``empty_like``.
    """
    shape, kind = tuple(map(int, shape)), dtype or like.dtype
    anywhere = partial(torch.empty, shape, dtype=kind, device=like.device)
    if torch.version.cuda is None or not like.is_cuda:
        return anywhere
    device, memory = like.get_device(), (shape, dense_strides(shape), kind)

    def made() -> Tensor:
        return _empty_strided_cuda(*memory) if _current_device() == device else anywhere()

    return made


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides = accumulate(reversed(shape[1:]), lambda size, width: size * max(width, 1), initial=1)
    return tuple(strides)[::-1]


def power_of_2(n: int) -> int:
    """The smallest power of two that is at least ``n``, and 1 at least."""
    return 1 << max(n - 1, 0).bit_length()


def floor_power_of_2(n: int) -> int:
    """The largest power of two that is at most ``n``; 0 for 0."""
    return 1 << (n.bit_length() - 1) if n > 0 else 0
