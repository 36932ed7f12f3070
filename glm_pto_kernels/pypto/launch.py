"""A kernel call whose arguments have been checked, and the one place where it meets the device.

The checks come first because pypto has none by default: a wrong dtype is read past its end and aborts the
process, a wrong static shape is taken in silence. All of them look at metadata only, so that they never
synchronise with the device and hold inside a captured graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Launch:
    """A checked call: ``build()`` gives the kernel, which takes the tensors and then the scalars."""

    operator: str
    build: Callable[[], Callable[..., None]]
    tensors: tuple[torch.Tensor, ...]
    written: tuple[int, ...]  # positions of the outputs in ``tensors``
    scalars: tuple[Any, ...] = ()

    def run(self) -> None:
        """Run on the current stream of the NPU that holds the tensors; raises RuntimeError anywhere else."""
        device = self.tensors[0].device
        if device.type != "npu":
            raise RuntimeError(
                f"{self.operator}: the PyPTO kernel runs on an Ascend NPU only, the tensors are on {device}. "
                "pypto would simulate there and leave the outputs as they are; use the torch backend."
            )
        if not all(self.tensors[i].numel() for i in self.written):
            return
        self.build()(*self.tensors, *self.scalars)


@dataclass(frozen=True)
class Arguments:
    """The checks of one operator's tensors; every failure names the operator and the argument."""

    operator: str
    device: torch.device

    def refuse(self, reason: str | None) -> None:
        """Raise ValueError for a reason of the operator's ``refusal``."""
        if reason is not None:
            raise ValueError(f"{self.operator}: {reason}")

    def rank(self, name: str, tensor: torch.Tensor, axes: str) -> tuple[int, ...]:
        """The shape of ``tensor``, which must have one axis per word of ``axes``."""
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{self.operator}: {name}: expected a tensor [{axes}], got {type(tensor).__name__}"
            )
        if tensor.dim() != len(axes.split(", ")):
            raise ValueError(f"{self.operator}: {name}: expected [{axes}], got shape {list(tensor.shape)}")
        return tuple(tensor.shape)

    def tensor(
        self, name: str, tensor: torch.Tensor, shape: Sequence[int], *dtypes: torch.dtype, dense: bool = True
    ) -> torch.Tensor:
        """``tensor``, if it has this shape, one of these dtypes, dense rows, and lies with the others."""
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{self.operator}: {name}: expected a tensor, got {type(tensor).__name__}")
        if tuple(tensor.shape) != tuple(shape):
            raise ValueError(
                f"{self.operator}: {name}: expected shape {list(shape)}, got {list(tensor.shape)}"
            )
        if tensor.dtype not in dtypes:
            wanted = " or ".join(str(dtype) for dtype in dtypes)
            raise TypeError(f"{self.operator}: {name}: expected {wanted}, got {tensor.dtype}; cast it first")
        if dense and not tensor.is_contiguous():
            raise ValueError(
                f"{self.operator}: {name}: expected a contiguous tensor, got strides {tensor.stride()} "
                f"for shape {list(tensor.shape)}; call .contiguous() first"
            )
        if tensor.device != self.device:
            raise ValueError(
                f"{self.operator}: {name}: expected device {self.device} like the others, got {tensor.device}"
            )
        return tensor
