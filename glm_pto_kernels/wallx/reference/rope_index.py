"""Reference of the three-axis position ids of text, image and video tokens. No host synchronisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glm_pto_kernels.wallx.plans import direct


@dataclass(frozen=True)
class Vision:
    """What the token ids and grids mean."""

    merge: int
    image_token: int
    video_token: int
    start_token: int
    tokens_per_second: float


def rope_index(
    input_ids: Tensor,
    image_grid_thw: Tensor | None,
    video_grid_thw: Tensor | None,
    second_per_grid_ts: Tensor | None,
    attention_mask: Tensor | None,
    vision: Vision,
) -> tuple[Tensor, Tensor]:
    """Position ids int64 [3, B, S] and deltas int64 [B, 1] (largest position + 1 - S).

    Padding (mask 0, on either side) has position 1 and is counted nowhere.
    """
    batch, length = input_ids.shape
    device = input_ids.device
    live = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask != 0
    # Positions are those of the unpadded sequence: bring the live tokens to the front, in their order.
    order = torch.argsort((~live).to(torch.int8), dim=1, stable=True)
    ids = input_ids.gather(1, order)
    count = live.sum(1, keepdim=True)
    place = torch.arange(length, device=device).expand(batch, length)
    inside = place < count
    axes = place.unsqueeze(0).expand(3, -1, -1)
    if image_grid_thw is not None or video_grid_thw is not None:
        axes = positions(ids, inside, image_grid_thw, video_grid_thw, second_per_grid_ts, vision)
    highest = torch.where(inside, axes.amax(0), -1).amax(1, keepdim=True) if length else count - 1
    axes = torch.where(inside, axes, 1)
    out = torch.empty_like(axes).scatter_(2, order.expand(3, -1, -1), axes)
    return out, highest + 1 - length


def positions(
    ids: Tensor,
    inside: Tensor,
    image_grid_thw: Tensor | None,
    video_grid_thw: Tensor | None,
    second_per_grid_ts: Tensor | None,
    vision: Vision,
) -> Tensor:
    """[3, B, S] positions of left-aligned sequences that hold images or videos."""
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    after_start = torch.zeros_like(inside)
    after_start[:, 1:] = (ids[:, :-1] == vision.start_token) & inside[:, 1:]
    is_image = after_start & (ids == vision.image_token)
    is_video = after_start & (ids == vision.video_token)
    image = grid_of(is_image, image_grid_thw, "image_grid_thw")
    video = grid_of(is_video, video_grid_thw, "video_grid_thw")
    grid = torch.where(is_video.unsqueeze(-1), video, image)
    frames, height, width = grid[..., 0], grid[..., 1] // vision.merge, grid[..., 2] // vision.merge
    seconds = interval_of(is_video, second_per_grid_ts)
    # The order of the two products is that of the original: both round in fp32.
    span = torch.maximum(height, width)
    last_frame = ((frames - 1) * seconds * vision.tokens_per_second).long()
    advance = torch.where(is_video, torch.maximum(last_frame + 1, span), span)

    begins = is_image | is_video
    begin = torch.where(begins, place, -1).cummax(1).values
    at = begin.clamp(min=0)
    local = place - begin
    patches = (frames * height * width).gather(1, at)
    in_span = (begin >= 0) & (local < patches) & inside
    step = torch.where(in_span, torch.where(begins, advance, 0), inside.long())
    base = step.cumsum(1) - step
    start = base.gather(1, at)
    rows, columns = height.gather(1, at).clamp(min=1), width.gather(1, at).clamp(min=1)
    frame = torch.div(local, rows * columns, rounding_mode="floor")
    t = (frame * seconds.gather(1, at) * vision.tokens_per_second).long()
    h = torch.div(local, columns, rounding_mode="floor") % rows
    w = local % columns
    text = base.unsqueeze(0).expand(3, -1, -1)
    return torch.where(in_span, start + torch.stack((t, h, w)), text)


def grid_of(begins: Tensor, grid: Tensor | None, name: str) -> Tensor:
    """[B, S, 3]: the grid of the n-th begin of the batch at that begin, zeros elsewhere."""
    if grid is None or grid.shape[0] == 0:
        require(~begins.any(), f"{name} is missing or empty, but input_ids has tokens of its kind")
        return torch.zeros(*begins.shape, 3, dtype=torch.int64, device=begins.device)
    ordinal = begins.flatten().cumsum(0).view(begins.shape) - 1
    require(
        ordinal.amax() < grid.shape[0] if ordinal.numel() else torch.ones((), dtype=torch.bool),
        f"{name} has {grid.shape[0]} rows, but input_ids has more starts of its kind",
    )
    picked = grid.to(device=begins.device, dtype=torch.int64)[ordinal.clamp(0, grid.shape[0] - 1)]
    picked = torch.where(begins.unsqueeze(-1), picked, 0)
    require((picked >= 0).all(), f"{name} has a negative value, but frames, rows and columns are counts")
    return picked


def interval_of(is_video: Tensor, second_per_grid_ts: Tensor | None) -> Tensor:
    """[B, S] fp32: seconds per frame at the begin of a video, 0 elsewhere; 1 where none are given."""
    if second_per_grid_ts is None:
        return is_video.float()
    given = second_per_grid_ts.numel()
    require(
        is_video.sum() <= given,
        f"second_per_grid_ts has {given} values, but input_ids has more starts of videos; "
        "give one for each, or None for 1.0",
    )
    if given == 0:
        return torch.zeros_like(is_video, dtype=torch.float32)
    seconds = second_per_grid_ts.to(device=is_video.device, dtype=torch.float32)
    ordinal = (is_video.flatten().cumsum(0).view(is_video.shape) - 1).clamp(0, given - 1)
    return torch.where(is_video, seconds[ordinal], 0.0)


def require(condition: Tensor, message: str) -> None:
    """Raise on the CPU; assert later in a trace, and on a device, where looking would synchronise."""
    if condition.device.type != "cpu" or not direct(condition):
        torch._assert_async(condition, message)
    elif not bool(condition):
        raise ValueError(f"rope_index: {message}")
