"""What a run-time compiled CUDA kernel needs of the driver and of the compiler that torch brings: through
ctypes, so that nothing is built or installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

ELEMENT = {torch.float16: 6, torch.bfloat16: 9}  # CUtensorMapDataType
SWIZZLE_128B, PROMOTE_NONE, PROMOTE_256B = 3, 0, 3
MAP_ALIGNMENT, MAP_BYTES = 64, 128
DYNAMIC_SHARED_MEMORY = 8  # CUfunction_attribute
INVALID_CONTEXT = 201  # CUresult
OLDEST = 12  # CUDA's first version with Hopper's instructions


@cache
def cuda() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def nvrtc() -> ctypes.CDLL | None:
    """The compiler of torch's own CUDA version, or None where torch came without it, or before CUDA 12."""
    major = int((torch.version.cuda or "0").partition(".")[0])
    if major < OLDEST:
        return None
    try:
        return ctypes.CDLL(f"libnvrtc.so.{major}")
    except OSError:
        return None


def require(code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        cuda().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{what}: {(text.value or b'unknown error').decode()}")


def compiled(source: str, architecture: str) -> bytes:
    """The binary for ``architecture``, e.g. "sm_90a"."""
    library = nvrtc()
    if library is None:
        raise RuntimeError("libnvrtc, which torch's CUDA packages bring, was not found")
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None)
    options = [f"--gpu-architecture={architecture}".encode(), b"-std=c++17"]
    failed = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if failed:
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"the CUDA compiler refused the kernel: {log.value.decode()}")
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, binary)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return binary.raw


class Function:
    """A kernel loaded on one device."""

    def __init__(self, binary: bytes, name: str, device: int, threads: int, shared_bytes: int) -> None:
        module, self.handle = ctypes.c_void_p(), ctypes.c_void_p()
        bind(device)
        require(cuda().cuModuleLoadData(ctypes.byref(module), binary), f"loading {name}")
        require(
            cuda().cuModuleGetFunction(ctypes.byref(self.handle), module, name.encode()), f"finding {name}"
        )
        require(
            cuda().cuFuncSetAttribute(self.handle, DYNAMIC_SHARED_MEMORY, shared_bytes),
            f"{shared_bytes} bytes of shared memory for {name}",
        )
        self.name, self.device, self.threads, self.shared_bytes = name, device, threads, shared_bytes

    def bound(self, maps: Sequence[TensorMap], numbers: Sequence[int]) -> Bound:
        return Bound(self, maps, numbers)


class Bound:
    """A kernel with its arguments, which are kept alive: the driver is given their addresses."""

    def __init__(self, function: Function, maps: Sequence[TensorMap], numbers: Sequence[int]) -> None:
        self.function, self.maps = function, list(maps)
        self.integers = [ctypes.c_int(n) for n in numbers]
        places = [m.address for m in maps] + [ctypes.addressof(n) for n in self.integers]
        self.arguments = (ctypes.c_void_p * len(places))(*places)
        self.launch = cuda().cuLaunchKernel

    def __call__(self, x: int, y: int, z: int, stream: int) -> None:
        function = self.function
        place = (function.handle, x, y, z, function.threads, 1, 1, function.shared_bytes)
        code = self.launch(*place, ctypes.c_void_p(stream), self.arguments, None)
        if code == INVALID_CONTEXT:
            bind(function.device)
            code = self.launch(*place, ctypes.c_void_p(stream), self.arguments, None)
        require(code, f"launching {function.name}")


def bind(device: int) -> None:
    """Make torch's context of ``device`` this thread's: a thread that has not used torch yet has none."""
    context = ctypes.c_void_p()
    require(cuda().cuDevicePrimaryCtxRetain(ctypes.byref(context), device), f"context of device {device}")
    require(cuda().cuCtxSetCurrent(context), f"context of device {device}")


class TensorMap:
    """A dense-row matrix as the tensor copy engine sees it: boxes of 128-byte rows, zeros outside.

    ``promote``: how much of a row comes into the L2 cache with what is asked for (CUtensorMapL2promotion).
    """

    def __init__(self, x: Tensor, rows: int, promote: int = PROMOTE_256B) -> None:
        self.memory = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        self.address = -(-ctypes.addressof(self.memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        code = cuda().cuTensorMapEncodeTiled(
            ctypes.c_void_p(self.address),
            ELEMENT[x.dtype],
            2,
            ctypes.c_void_p(x.data_ptr()),
            (ctypes.c_uint64 * 2)(x.shape[1], x.shape[0]),
            (ctypes.c_uint64 * 1)(x.stride(0) * x.element_size()),
            (ctypes.c_uint32 * 2)(128 // x.element_size(), rows),
            (ctypes.c_uint32 * 2)(1, 1),
            0,
            SWIZZLE_128B,
            promote,
            0,
        )
        require(code, f"describing a matrix {list(x.shape)} with strides {list(x.stride())}")
