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
def test_block_order(index, merge):
    grids = [[2, 6, 12], [1, 7, 5]]
    inv_freq = torch.rand(5)
    out = rot_pos_emb(inv_freq, torch.tensor(grids, dtype=index), merge)
    assert out.dtype == torch.float32
    assert torch.equal(out, loops(inv_freq, grids, merge))


def test_no_grids():
    assert rot_pos_emb(torch.rand(5), torch.zeros(0, 3, dtype=torch.int32), 2).shape == (0, 10)


def test_refuses():
    grids = torch.tensor([[1, 2, 2]])
    with pytest.raises(ValueError, match="inv_freq must be floating"):
        rot_pos_emb(torch.zeros(2, 2), grids, 2)
    with pytest.raises(ValueError, match=r"grid_thw must be integers \[N, 3\]"):
        rot_pos_emb(torch.rand(5), grids.float(), 2)
    with pytest.raises(ValueError, match="spatial_merge_size must be positive"):
        rot_pos_emb(torch.rand(5), grids, 0)
