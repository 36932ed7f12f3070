"""rot_pos_emb and get_window_index on Triton: one launch each, whatever the number of patch grids.

The sizes of the outputs depend on the grids' values, so these are read on the host once, as in the
reference; everything else is worked out by the programs, each of which looks up the grids of its own places.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.grids import read as grids_of
from glm_pto_kernels.wallx.triton.launch import Kernel, power_of_2

BLOCK, GRIDS = 64, 128


@triton.jit
def grid_of(grid, place, grids, UNIT: tl.constexpr, WINDOW: tl.constexpr, GRIDS: tl.constexpr):
    """Number of the grid that each ``place`` lies in, and that grid's first place.

    A grid has frames x rows x columns places, counted in UNIT patches; with WINDOW, in windows of those.
    """
    number = place * 0
    start = place * 0
    before = 0
    for first in range(0, grids, GRIDS):
        at = first + tl.arange(0, GRIDS)
        t = tl.load(grid + 3 * at, mask=at < grids, other=0).to(tl.int32)
        h = tl.load(grid + 3 * at + 1, mask=at < grids, other=0).to(tl.int32) // UNIT
        w = tl.load(grid + 3 * at + 2, mask=at < grids, other=0).to(tl.int32) // UNIT
        whole = (t > 0) & (h > 0) & (w > 0)
        if WINDOW > 0:
            h, w = (h + WINDOW - 1) // WINDOW, (w + WINDOW - 1) // WINDOW
        size = tl.where(whole, t * h * w, 0)
        ends = before + tl.cumsum(size, axis=0)
        behind = (ends[None, :] <= place[:, None]) & (at < grids)[None, :]
        number += tl.sum(behind.to(tl.int32), axis=1)
        start = tl.maximum(start, tl.max(tl.where(behind, ends[None, :], 0), axis=1))
        before += tl.sum(size, axis=0)
    return number, start


@triton.jit(do_not_specialize=["grids", "tokens"])
def rot_pos_kernel(
    grid, frequency, out, grids: tl.int32, tokens: tl.int32,
    F: tl.constexpr, F_PAD: tl.constexpr, MERGE: tl.constexpr, BLOCK: tl.constexpr, GRIDS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = token < tokens
    unit = MERGE * MERGE
    number, start = grid_of(grid, token // unit, grids, MERGE, 0, GRIDS)
    high = tl.load(grid + 3 * number + 1, mask=live, other=MERGE).to(tl.int32) // MERGE
    wide = tl.load(grid + 3 * number + 2, mask=live, other=MERGE).to(tl.int32) // MERGE
    block, inside = (token // unit - start) % (high * wide), token % unit
    row = block // wide * MERGE + inside // MERGE
    column = block % wide * MERGE + inside % MERGE
    f = tl.arange(0, F_PAD)
    rate = tl.load(frequency + f, mask=f < F, other=0).to(tl.float32)[None, :]
    to = out + token.to(tl.int64)[:, None] * (2 * F) + f[None, :]
    mask = live[:, None] & (f < F)[None, :]
    tl.store(to, row.to(tl.float32)[:, None] * rate, mask=mask)
    tl.store(to + F, column.to(tl.float32)[:, None] * rate, mask=mask)


@triton.jit(do_not_specialize=["grids", "patches", "windows"])
def window_kernel(
    grid, index, bounds, grids: tl.int32, patches: tl.int32, windows: tl.int32,
    MERGE: tl.constexpr, WINDOW: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr, GRIDS: tl.constexpr,
):  # fmt: skip
    """The first programs write the order of the patches, the others where windows end."""
    programs = tl.cdiv(patches, BLOCK)
    lane = tl.arange(0, BLOCK)
    if tl.program_id(0) < programs:
        place = tl.program_id(0) * BLOCK + lane
        number, start = grid_of(grid, place, grids, MERGE, 0, GRIDS)
        live = place < patches
        rows = tl.load(grid + 3 * number + 1, mask=live, other=MERGE).to(tl.int32) // MERGE
        columns = tl.load(grid + 3 * number + 2, mask=live, other=MERGE).to(tl.int32) // MERGE
        frame = (place - start) // (rows * columns) * (rows * columns)
        inside = place - start - frame
        # Bands of whole window height first, then windows of whole width: border ones are smaller.
        band = inside // (WINDOW * columns)
        height = tl.minimum(rows - band * WINDOW, WINDOW)
        inside -= band * WINDOW * columns
        window = inside // (height * WINDOW)
        width = tl.minimum(columns - window * WINDOW, WINDOW)
        inside -= window * height * WINDOW
        row, column = band * WINDOW + inside // width, window * WINDOW + inside % width
        tl.store(index + place, start + frame + row * columns + column, mask=live)
    else:
        place = (tl.program_id(0) - programs) * BLOCK + lane
        number, first = grid_of(grid, place, grids, MERGE, WINDOW, GRIDS)
        live = place < windows
        rows = tl.load(grid + 3 * number + 1, mask=live, other=MERGE).to(tl.int32) // MERGE
        columns = tl.load(grid + 3 * number + 2, mask=live, other=MERGE).to(tl.int32) // MERGE
        high, wide = tl.cdiv(rows, WINDOW), tl.cdiv(columns, WINDOW)
        window = place - first
        frame, band, across = window // (high * wide), window // wide % high, window % wide
        height = tl.minimum(rows - band * WINDOW, WINDOW)
        end = (frame * rows + band * WINDOW) * columns + height * tl.minimum((across + 1) * WINDOW, columns)
        # Patches of the grids before this one.
        before = place * 0
        for one in range(grids):
            t = tl.load(grid + 3 * one).to(tl.int32)
            h = tl.load(grid + 3 * one + 1).to(tl.int32) // MERGE
            w = tl.load(grid + 3 * one + 2).to(tl.int32) // MERGE
            whole = (t > 0) & (h > 0) & (w > 0)
            before += tl.where((one < number) & whole, t * h * w, 0)
        tl.store(bounds + 1 + place, (before + end) * UNIT, mask=live)
        if tl.program_id(0) == programs:
            tl.store(bounds + lane, lane * 0, mask=lane == 0)


ROT, WINDOWS = Kernel(rot_pos_kernel), Kernel(window_kernel)


def rot_pos_emb(inv_freq: Tensor, grid_thw: Tensor, merge: int) -> Tensor:
    """See ``glm_pto_kernels.wallx.rot_pos_emb``."""
    grids = grids_of("rot_pos_emb", grid_thw)
    tokens = sum(t * (h // merge) * (w // merge) for t, h, w in grids) * merge**2
    count = inv_freq.shape[0]
    out = torch.empty(tokens, 2 * count, dtype=torch.float32, device=inv_freq.device)
    if out.numel() == 0:
        return out
    device = inv_freq.get_device()
    grid_thw = grid_thw.to(inv_freq.device).contiguous()
    key = (device, inv_freq.dtype, grid_thw.dtype, count, merge)
    launch = ROT.variants.get(key)
    if launch is None:
        constants = {
            "F": count, "F_PAD": power_of_2(count), "MERGE": merge, "BLOCK": BLOCK, "GRIDS": GRIDS
        }  # fmt: skip
        launch = ROT.variant(key, device, constants, BLOCK, num_warps=4)
    launch(launch.grid(tokens), (grid_thw, inv_freq.contiguous(), out), (grid_thw.shape[0], tokens))
    return out


def get_window_index(grid_thw: Tensor, merge: int, window: int, unit: int) -> tuple[Tensor, Tensor]:
    """See ``glm_pto_kernels.wallx.get_window_index``."""
    patches = windows = 0
    for t, rows, columns in (
        (t, h // merge, w // merge) for t, h, w in grids_of("get_window_index", grid_thw)
    ):
        patches += t * rows * columns
        windows += t * -(-rows // window) * -(-columns // window)
    index = torch.empty(patches, dtype=torch.int32, device=grid_thw.device)
    if patches == 0:
        return index, torch.zeros(1, dtype=torch.int32, device=grid_thw.device)
    bounds = torch.empty(windows + 1, dtype=torch.int32, device=grid_thw.device)
    device = grid_thw.get_device()
    key = (device, grid_thw.dtype, merge, window, unit)
    launch = WINDOWS.variants.get(key)
    if launch is None:
        constants = {"MERGE": merge, "WINDOW": window, "UNIT": unit, "BLOCK": BLOCK, "GRIDS": GRIDS}
        launch = WINDOWS.variant(key, device, constants, BLOCK, num_warps=4)
    programs = launch.grid(patches) + launch.grid(windows)
    launch(programs, (grid_thw.contiguous(), index, bounds), (grid_thw.shape[0], patches, windows))
    return index, bounds
