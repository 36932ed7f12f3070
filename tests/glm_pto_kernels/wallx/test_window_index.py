"""Window order, against the nested loops that define it."""

from __future__ import annotations

import pytest
import torch

from glm_pto_kernels.wallx import get_window_index


def loops(grids, merge, window, unit):
    order, lengths, first = [], [0], 0
    for t, h, w in grids:
        rows, columns = h // merge, w // merge
        for frame in range(t):
            for top in range(0, rows, window):
                for left in range(0, columns, window):
                    patches = [
                        first + (frame * rows + r) * columns + c
                        for r in range(top, min(top + window, rows))
                        for c in range(left, min(left + window, columns))
                    ]
                    order += patches
                    lengths.append(lengths[-1] + len(patches) * unit)
        first += t * rows * columns
    return order, lengths


@pytest.mark.parametrize("window", [1, 3, 4, 50])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_border_windows_are_smaller(place, window, index):
    grids = [[2, 10, 14], [1, 8, 8], [1, 3, 2]]
    order, bounds = get_window_index(torch.tensor(grids, dtype=index, device=place.device), 2, window, 14, 4)
    expected = loops(grids, 2, window, 4)
    assert order.dtype == bounds.dtype == torch.int32
    assert order.tolist() == expected[0]
    assert bounds.tolist() == expected[1]


def test_more_than_256_windows(place):
    """The original adds up the lengths in one block without a barrier between blocks."""
    place.skip_slow(3 * 40 * 40)
    grids = [[3, 40, 40]]
    order, bounds = get_window_index(torch.tensor(grids, device=place.device), 1, 2, 14, 1)
    assert (order.tolist(), bounds.tolist()) == loops(grids, 1, 2, 1)


def test_more_grids_than_a_program_looks_at_together(place):
    grids = [[1, 1, 1], [0, 4, 4]] * 64 + [[1, 5, 3]]
    order, bounds = get_window_index(torch.tensor(grids, device=place.device), 1, 2, 14, 1)
    assert (order.tolist(), bounds.tolist()) == loops(grids, 1, 2, 1)


@pytest.mark.parametrize(
    "grids",
    [[], [[0, 4, 4]], [[1, 0, 4]], [[0, 0, 0]], [[1, 1, 4]]],
    ids=["none", "no_frames", "no_rows", "nothing", "less_than_a_block"],
)
def test_nothing_to_order(place, grids):
    made = torch.tensor(grids, dtype=torch.int32, device=place.device).reshape(-1, 3)
    order, bounds = get_window_index(made, 2, 2, 14, 4)
    assert order.tolist() == []
    assert bounds.tolist() == [0]


@pytest.mark.parametrize("grid", [[-1, 4, 4], [1, -4, 4], [1, 4, -4], [-1, -4, 4], [0, -1, 4]])
def test_refuses_negative_grids_with_their_values(place, grid):
    grids = torch.tensor([[1, 2, 2], grid], device=place.device)
    found = "frames = {}, rows = {}, columns = {} in row 1".format(*grid)
    with pytest.raises(ValueError, match=f"get_window_index: grid_thw must not be negative, found {found}"):
        get_window_index(grids, 2, 2, 14, 4)


def test_refuses():
    with pytest.raises(ValueError, match="vit_merger_window_size must be positive"):
        get_window_index(torch.tensor([[1, 2, 2]]), 2, 0, 14, 4)
    with pytest.raises(ValueError, match="spatial_merge_size must be"):
        get_window_index(torch.tensor([[1, 2, 2]]), 0, 2, 14, 4)
    with pytest.raises(ValueError, match=r"grid_thw must be integers \[N, 3\]"):
        get_window_index(torch.tensor([1, 2, 2]), 2, 2, 14, 4)
    with pytest.raises(ValueError, match="spatial_merge_unit must be positive, found 0"):
        get_window_index(torch.tensor([[1, 2, 2]]), 2, 2, 14, 0)
