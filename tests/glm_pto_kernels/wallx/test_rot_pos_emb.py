"""Two-axis rotary frequencies, against the nested loops that define them."""

from __future__ import annotations

import pytest
import torch

from glm_pto_kernels.wallx import rot_pos_emb


def loops(inv_freq, grids, merge):
    rows = []
    for t, h, w in grids:
        for _ in range(t):
            for block_row in range(h // merge):
                for block_column in range(w // merge):
                    for r in range(merge):
                        for c in range(merge):
                            row, column = block_row * merge + r, block_column * merge + c
                            rows.append(torch.cat((row * inv_freq, column * inv_freq)))
    return torch.stack(rows)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("merge", [1, 2, 3])
def test_block_order(place, index, merge):
    grids = [[2, 6, 12], [1, 7, 5]]
    inv_freq = torch.rand(5, device=place.device)
    out = rot_pos_emb(inv_freq, torch.tensor(grids, dtype=index, device=place.device), merge)
    assert out.dtype == torch.float32
    assert torch.equal(out, loops(inv_freq, grids, merge))


def test_more_grids_than_a_program_looks_at_together(place):
    grids = [[1, 2, 2], [0, 4, 4], [1, 1, 4]] * 50 + [[2, 4, 6]]
    inv_freq = torch.rand(4, device=place.device)
    assert torch.equal(
        rot_pos_emb(inv_freq, torch.tensor(grids, device=place.device), 2), loops(inv_freq, grids, 2)
    )


def test_frequencies_have_gradients(place):
    inv_freq = torch.rand(5, device=place.device, requires_grad=True)
    rot_pos_emb(inv_freq, torch.tensor([[1, 2, 4]], device=place.device), 2).sum().backward()
    # Rows 0 and 1 four times each, columns 0 to 3 twice each.
    assert torch.equal(inv_freq.grad.cpu(), torch.full((5,), 4.0 + 12.0))


def test_no_grids(place):
    grids = torch.zeros(0, 3, dtype=torch.int32, device=place.device)
    assert rot_pos_emb(torch.rand(5, device=place.device), grids, 2).shape == (0, 10)


@pytest.mark.parametrize("grid", [[0, 4, 4], [1, 0, 4], [1, 4, 0], [0, 0, 0], [1, 1, 4]])
def test_a_grid_without_a_block_has_no_tokens(place, grid):
    inv_freq = torch.rand(5, device=place.device)
    grids = torch.tensor([grid, [1, 2, 4]], device=place.device)
    assert rot_pos_emb(inv_freq, grids[:1], 2).shape == (0, 10)
    assert torch.equal(rot_pos_emb(inv_freq, grids, 2), loops(inv_freq, [[1, 2, 4]], 2))


@pytest.mark.parametrize("grid", [[-1, 4, 4], [1, -4, 4], [1, 4, -4], [-1, -4, 4], [0, -1, 4]])
def test_refuses_negative_grids_with_their_values(place, grid):
    grids = torch.tensor([[1, 2, 2], grid], device=place.device)
    found = "frames = {}, rows = {}, columns = {} in row 1".format(*grid)
    with pytest.raises(ValueError, match=f"rot_pos_emb: grid_thw must not be negative, found {found}"):
        rot_pos_emb(torch.rand(5, device=place.device), grids, 2)


def test_refuses():
    grids = torch.tensor([[1, 2, 2]])
    with pytest.raises(ValueError, match="inv_freq must be floating"):
        rot_pos_emb(torch.zeros(2, 2), grids, 2)
    with pytest.raises(ValueError, match=r"grid_thw must be integers \[N, 3\]"):
        rot_pos_emb(torch.rand(5), grids.float(), 2)
    with pytest.raises(ValueError, match="spatial_merge_size must be positive"):
        rot_pos_emb(torch.rand(5), grids, 0)
