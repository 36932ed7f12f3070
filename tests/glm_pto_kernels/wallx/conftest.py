"""Where the wall-x tests run: the torch reference, Triton's interpreter on the CPU, Triton on a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from glm_pto_kernels.wallx import backends
from glm_pto_kernels.wallx.overlaps import extent


def load_kernels_for_the_interpreter() -> None:
    """Triton decides for each kernel whether it is interpreted when the kernel's module is imported.

    Any test may import them first, in an order that changes from run to run, so it is done here.
    """
    if torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        package = importlib.import_module("glm_pto_kernels.wallx.triton")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


load_kernels_for_the_interpreter()


@dataclass(frozen=True)
class Place:
    """A backend and the device that its tensors live on."""

    name: str
    device: str

    @property
    def slow(self) -> bool:
        """The interpreter takes milliseconds for every program: small sizes only."""
        return self.name == "interpret"

    def skip_slow(self, elements: int) -> None:
        if self.slow and elements > 400:
            pytest.skip("too large for the interpreter")


PLACES = [
    pytest.param(Place("torch", "cpu"), id="torch"),
    pytest.param(Place("interpret", "cpu"), id="interpret", marks=pytest.mark.interpret),
    pytest.param(Place("triton", "cuda"), id="gpu", marks=pytest.mark.gpu),
]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    where: Place = request.param
    if where.name == "interpret" and torch.cuda.is_available():
        pytest.skip("kernels that Triton has loaded for its interpreter do not run on the GPU any more")
    elif where.name == "interpret":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        read_scalars_of_new_numpy(monkeypatch)
    elif where.device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    elif where.device == "cuda" and os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("TRITON_INTERPRET is set: kernels would not run on the GPU")
    torch.manual_seed(0)
    with backends.using("torch" if where.name == "torch" else "triton"):
        yield where


def read_scalars_of_new_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6's interpreter calls int() on one-element arrays, which numpy 2.4 no longer allows."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


@pytest.fixture
def guarded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter, loads and stores outside the tensors of a launch are errors."""
    if place.name != "interpret":
        return
    from triton.runtime import interpreter

    launch = importlib.import_module("glm_pto_kernels.wallx.triton.launch")
    builder, dispatch = interpreter.InterpreterBuilder, launch.Variant.dispatch
    tensors: list[tuple[int, int]] = []

    def check(pointers, mask):
        size = interpreter._get_np_dtype(pointers.get_element_ty()).itemsize
        for address in pointers.data[mask.data.astype(bool)].tolist():
            assert any(first <= address <= last - size for first, last in tensors), "outside its tensors"

    def load(self, pointers, mask, *rest, then=builder.create_masked_load):
        check(pointers, mask)
        return then(self, pointers, mask, *rest)

    def store(self, pointers, value, mask, *rest, then=builder.create_masked_store):
        check(pointers, mask)
        return then(self, pointers, value, mask, *rest)

    def note(variant, grid, launched, numbers):
        tensors[:] = [(t.data_ptr(), t.data_ptr() + extent(t)) for t in launched if t.numel()]
        dispatch(variant, grid, launched, numbers)

    monkeypatch.setattr(builder, "create_masked_load", load)
    monkeypatch.setattr(builder, "create_masked_store", store)
    monkeypatch.setattr(launch.Variant, "dispatch", note)


@pytest.fixture
def annotated(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter, integers that a kernel takes as int64 are; it takes their type from their value."""
    if place.name != "interpret":
        return
    import numpy
    from triton import language
    from triton.runtime import interpreter

    launch = importlib.import_module("glm_pto_kernels.wallx.triton.launch")

    def wide(number):
        handle = interpreter.TensorHandle(numpy.array([number], dtype=numpy.int64), language.int64)
        return language.tensor(handle, language.int64)

    def dispatch(variant, grid, tensors, numbers, then=launch.Variant.dispatch):
        taken = list(inspect.signature(variant.fn.fn).parameters.values())[len(tensors) :]
        typed = [
            wide(number) if "int64" in str(parameter.annotation) else number
            for parameter, number in zip(taken, numbers, strict=False)  # constants follow
        ]
        then(variant, grid, tensors, typed)

    monkeypatch.setattr(launch.Variant, "dispatch", dispatch)


@pytest.fixture(autouse=True)
def reset_backend() -> Iterator[None]:
    yield
    backends.use(None)
