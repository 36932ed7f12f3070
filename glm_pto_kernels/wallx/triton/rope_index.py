"""rope_index on Triton: one program a sequence, instead of a hundred small launches."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from glm_pto_kernels.wallx.reference import rope_index as reference
from glm_pto_kernels.wallx.reference.rope_index import Vision
from glm_pto_kernels.wallx.triton.launch import Kernel, power_of_2

LONGEST = 16384  # tokens that a program holds at a time


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def begins_of(ids, mask, row, length, image, video, start, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """Which tokens of a row are live, begin an image, begin a video: those that follow a start token."""
    at = tl.arange(0, BLOCK)
    inside = at < length
    base = row.to(tl.int64) * length
    live, earlier = inside, inside & (at > 0)
    before = at - 1
    if MASKED:
        live = tl.load(mask + base + at, mask=inside, other=0) != 0
        earlier = tl.load(mask + base + at - 1, mask=earlier, other=0) != 0
        before = tl.associative_scan(tl.where(earlier, at - 1, -1), 0, larger)
    token = tl.load(ids + base + at, mask=inside, other=0)
    last = tl.load(ids + base + before, mask=live & (before >= 0), other=0)
    after = live & (before >= 0) & (last == start)
    return live, after & (token == image), after & (token == video)


@triton.jit
def lowest_of(grid, used, BLOCK: tl.constexpr):
    """The least value of the first ``used`` rows, 0 where none is negative."""
    at = tl.arange(0, BLOCK)
    lowest = at * 0
    for first in range(0, 3 * used, BLOCK):
        value = tl.load(grid + first + at, mask=first + at < 3 * used, other=0)
        lowest = tl.minimum(lowest, tl.where(value < 0, -1, 0))
    return tl.min(lowest, axis=0)


@triton.jit(do_not_specialize=["batch", "length", "images", "videos", "intervals", "image", "video", "start"])
def rope_index_kernel(
    ids, mask, image_grid, video_grid, seconds, out, deltas, fits,
    batch: tl.int32, length: tl.int32, images: tl.int32, videos: tl.int32, intervals: tl.int32,
    image: tl.int64, video: tl.int64, start: tl.int64,
    MASKED: tl.constexpr, VISION: tl.constexpr, TIMED: tl.constexpr, MERGE: tl.constexpr,
    RATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    live, is_image, is_video = begins_of(ids, mask, row, length, image, video, start, MASKED, BLOCK)
    place = tl.cumsum(live.to(tl.int32), axis=0) - 1
    t_axis, h_axis, w_axis = place, place, place
    if VISION:
        image_first, video_first = 0, 0
        for other in range(row):
            _, i, v = begins_of(ids, mask, row * 0 + other, length, image, video, start, MASKED, BLOCK)
            image_first += tl.sum(i.to(tl.int32), axis=0)
            video_first += tl.sum(v.to(tl.int32), axis=0)
        image_number = image_first + tl.cumsum(is_image.to(tl.int32), axis=0) - 1
        video_number = video_first + tl.cumsum(is_video.to(tl.int32), axis=0) - 1
        if row == batch - 1:
            last_image, last_video = tl.max(image_number, axis=0), tl.max(video_number, axis=0)
            lowest = tl.minimum(
                lowest_of(image_grid, tl.minimum(last_image + 1, images), BLOCK),
                lowest_of(video_grid, tl.minimum(last_video + 1, videos), BLOCK),
            )
            enough = (last_image < images) & (last_video < videos) & (last_video < intervals)
            tl.store(fits, enough & (lowest >= 0))
        # The span that each token may lie in began with the latest of both kinds.
        image_at = tl.associative_scan(tl.where(is_image, place, -1), 0, larger)
        video_at = tl.associative_scan(tl.where(is_video, place, -1), 0, larger)
        begin = tl.maximum(image_at, video_at)
        of_video = video_at > image_at
        i = tl.minimum(tl.maximum(image_number, 0), images - 1)
        v = tl.minimum(tl.maximum(video_number, 0), videos - 1)
        by_image, by_video = live & (image_at > video_at), live & of_video
        frames, height, width = i * 0, i * 0, i * 0
        if images > 0:
            frames = tl.load(image_grid + 3 * i, mask=by_image, other=0).to(tl.int32)
            height = tl.load(image_grid + 3 * i + 1, mask=by_image, other=0).to(tl.int32)
            width = tl.load(image_grid + 3 * i + 2, mask=by_image, other=0).to(tl.int32)
        if videos > 0:
            frames += tl.load(video_grid + 3 * v, mask=by_video, other=0).to(tl.int32)
            height += tl.load(video_grid + 3 * v + 1, mask=by_video, other=0).to(tl.int32)
            width += tl.load(video_grid + 3 * v + 2, mask=by_video, other=0).to(tl.int32)
        height, width = height // MERGE, width // MERGE
        interval = of_video.to(tl.float32)
        if TIMED:
            n = tl.minimum(tl.maximum(video_number, 0), intervals - 1)
            interval = tl.load(seconds + n, mask=by_video, other=0).to(tl.float32)
        patches = frames * height * width
        span = tl.maximum(height, width)
        last_frame = ((frames - 1).to(tl.float32) * interval * RATE).to(tl.int32)
        advance = tl.where(of_video, tl.maximum(last_frame + 1, span), span)
        local = place - begin
        in_span = live & (begin >= 0) & (local < patches)
        step = tl.where(in_span, tl.where(is_image | is_video, advance, 0), live.to(tl.int32))
        reached = tl.cumsum(step, axis=0)
        height, width = tl.maximum(height, 1), tl.maximum(width, 1)
        frame = local // (height * width)
        t = (frame.to(tl.float32) * interval * RATE).to(tl.int32)
        # Inside a span nothing advances behind its begin.
        t_axis = tl.where(in_span, reached - advance + t, reached - step)
        h_axis = tl.where(in_span, reached - advance + local // width % height, reached - step)
        w_axis = tl.where(in_span, reached - advance + local % width, reached - step)
    highest = tl.max(tl.where(live, tl.maximum(t_axis, tl.maximum(h_axis, w_axis)), -1), axis=0)
    tl.store(deltas + row, (highest + 1 - length).to(tl.int64))
    to = out + row.to(tl.int64) * length + at
    plane = batch.to(tl.int64) * length
    inside = at < length
    tl.store(to, tl.where(live, t_axis, 1).to(tl.int64), mask=inside)
    tl.store(to + plane, tl.where(live, h_axis, 1).to(tl.int64), mask=inside)
    tl.store(to + 2 * plane, tl.where(live, w_axis, 1).to(tl.int64), mask=inside)


ROPE_INDEX = Kernel(rope_index_kernel)


def rope_index(
    input_ids: Tensor,
    image_grid_thw: Tensor | None,
    video_grid_thw: Tensor | None,
    second_per_grid_ts: Tensor | None,
    attention_mask: Tensor | None,
    vision: Vision,
) -> tuple[Tensor, Tensor]:
    """See ``glm_pto_kernels.wallx.get_rope_index``; what does not fit a program goes to the reference."""
    batch, length = input_ids.shape
    if batch * length == 0 or length > LONGEST:
        return reference(
            input_ids, image_grid_thw, video_grid_thw, second_per_grid_ts, attention_mask, vision
        )
    place, device = input_ids.device, input_ids.get_device()
    out = torch.empty(3, batch, length, dtype=torch.int64, device=place)
    deltas = torch.empty(batch, 1, dtype=torch.int64, device=place)
    fits = torch.empty((), dtype=torch.bool, device=place)
    ids = input_ids.contiguous()

    def there(x: Tensor | None) -> Tensor:
        """Unused pointers still need an address."""
        return ids if x is None or x.numel() == 0 else x.to(place).contiguous()

    grids = [there(image_grid_thw), there(video_grid_thw)]
    mask, seconds = there(attention_mask), there(second_per_grid_ts)
    seen = image_grid_thw is not None or video_grid_thw is not None
    key = (
        device, ids.dtype, mask.dtype, grids[0].dtype, grids[1].dtype, seconds.dtype,
        attention_mask is not None, seen, seconds is not ids, vision.merge, vision.tokens_per_second,
        power_of_2(length),
    )  # fmt: skip
    launch = ROPE_INDEX.variants.get(key)
    if launch is None:
        constants = {
            "MASKED": attention_mask is not None,
            "VISION": seen,
            "TIMED": seconds is not ids,
            "MERGE": vision.merge,
            "RATE": float(vision.tokens_per_second),
            "BLOCK": power_of_2(length),
        }
        launch = ROPE_INDEX.variant(key, device, constants, num_warps=4 if length <= 2048 else 8)
    counts = [0 if grid is None else grid.shape[0] for grid in (image_grid_thw, video_grid_thw)]
    # Seconds that are not given are 1.0 for every video that there is a grid for.
    intervals = counts[1] if second_per_grid_ts is None else second_per_grid_ts.numel()
    numbers = (
        *(batch, length, *counts, intervals),
        *(vision.image_token, vision.video_token, vision.start_token),
    )
    launch(batch, (ids, mask, *grids, seconds, out, deltas, fits), numbers)
    if seen:
        require_on(fits)
    return out, deltas


def require_on(fits: Tensor) -> None:
    """As in the reference: an error on the CPU, an assertion on a device, where looking would synchronise."""
    message = (
        "input_ids has more starts of images or videos than image_grid_thw or video_grid_thw has rows, or of "
        "videos than second_per_grid_ts has values, or a grid of theirs has a negative value"
    )
    if fits.is_cuda:
        torch._assert_async(fits, message)
    elif not bool(fits):
        raise ValueError(f"rope_index: {message}")
