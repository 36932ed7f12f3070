"""Do tensors share memory that one of them is written to? Exact for strided views; nothing is read."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

#: Looking stops here; no layout that a caller would write takes more than a few of these steps.
MOST_STEPS = 10_000

Named = tuple[str, Tensor]
#: A stride in bytes, and the least and the largest number of them between an element of each tensor.
Term = tuple[int, int, int]


def refuse_overlaps(
    operator: str, outputs: Sequence[Named], inputs: Sequence[Named], *, in_place: bool = False
) -> None:
    """Raises ValueError where an output shares memory with another one or with an input.

    With ``in_place`` an output may be just the input of its number.
    """
    for number, (name, out) in enumerate(outputs):
        replaced = in_place and same_view(out, inputs[number][1])
        read = [one for place, one in enumerate(inputs) if not (replaced and place == number)]
        for other, tensor in (*outputs[number + 1 :], *read):
            if overlap(out, tensor):
                raise ValueError(
                    f"{operator}: {name} shares memory with {other}, which would be read or written while "
                    f"{name} is; give {name} memory of its own"
                )


def same_view(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape and type are the same elements in the same order."""
    return a is b or (a.data_ptr() == b.data_ptr() and a.stride() == b.stride())


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether a byte belongs to both; False where finding out takes too long."""
    if a.numel() == 0 or b.numel() == 0 or a.device != b.device:
        return False
    first, second = a.data_ptr(), b.data_ptr()
    if first + extent(a) <= second or second + extent(b) <= first:
        return False
    # Element i of a and j of b meet where sum(i * stride) - sum(j * stride) is the distance of their bases.
    reach: dict[int, list[int]] = {1: [1 - b.element_size(), a.element_size() - 1]}
    for tensor, sign in ((a, 1), (b, -1)):
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            span = reach.setdefault(stride * tensor.element_size(), [0, 0])
            span[sign > 0] += sign * (size - 1)
    terms = [(stride, low, high) for stride, (low, high) in sorted(reach.items(), reverse=True) if stride]
    return meet(terms, second - first, [MOST_STEPS])


def extent(x: Tensor) -> int:
    """Bytes from the first to the last one of a tensor with elements."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return int((last + 1) * x.element_size())


def meet(terms: Sequence[Term], distance: int, steps: list[int]) -> bool:
    """Whether numbers within the terms' bounds make the distance, the largest stride first."""
    if not terms:
        return distance == 0
    (stride, low, high), *rest = terms
    least, most = (sum(s * bounds[side] for s, *bounds in rest) for side in (0, 1))
    # The number of strides must leave what the rest can make: -(-x // y) rounds up.
    for number in range(
        max(low, -((most - distance) // stride)), min(high, (distance - least) // stride) + 1
    ):
        steps[0] -= 1
        if steps[0] < 0:
            return False
        if meet(rest, distance - number * stride, steps):
            return True
    return False
