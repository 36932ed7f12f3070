"""Three-axis position ids. Source: wall-x ``csrc/rope_index.cu``; semantics in docs/wallx.md."""

from __future__ import annotations

import torch
from torch import Tensor

from glm_pto_kernels.wallx.backends import traceable
from glm_pto_kernels.wallx.reference import rope_index as reference
from glm_pto_kernels.wallx.reference.rope_index import Vision

INTEGERS = (torch.int32, torch.int64)


def get_rope_index(
    input_ids: Tensor,
    image_grid_thw: Tensor | None,
    video_grid_thw: Tensor | None,
    second_per_grid_ts: Tensor | None,
    attention_mask: Tensor | None,
    spatial_merge_size: int,
    image_token_id: int,
    video_token_id: int,
    vision_start_token_id: int,
    tokens_per_second: float,
) -> tuple[Tensor, Tensor]:
    """Time, height and width position of every token.

    A text token advances all three by one. A patch span begins at an image or video token that follows a
    vision start token; its patches have the frame's time (scaled for videos), row and column, and the text
    behind it goes on from the largest position of the span.

    Args:
        input_ids: [B, S] int32 or int64.
        image_grid_thw, video_grid_thw: [N, 3] frames, rows, columns in patches, in the order in which the
            batch shows them; any number of them. What has no patches (a size below ``spatial_merge_size``)
            is text.
        second_per_grid_ts: [videos] seconds per frame; 1.0 where None.
        attention_mask: [B, S]; 0 is padding, on either side. Padding has position 1 and is counted nowhere.
        spatial_merge_size: patches per merged side.
        tokens_per_second: positions per second of video.

    Returns:
        ``(position_ids int64 [3, B, S], deltas int64 [B, 1])``, delta = largest position + 1 - S.

    Raises:
        ValueError: shapes do not fit, or the batch shows more images or videos than there are grids, more
            videos than seconds where these are given, or a grid with a negative value (on a GPU what the
            batch shows is a device assertion, because looking would synchronise).
    """
    if input_ids.dim() != 2 or input_ids.dtype not in INTEGERS:
        raise ValueError(
            f"rope_index: input_ids must be integers [B, S], found {input_ids.dtype} {list(input_ids.shape)}"
        )
    if attention_mask is not None and attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"rope_index: attention_mask {list(attention_mask.shape)} does not have the shape of input_ids "
            f"{list(input_ids.shape)}"
        )
    for name, grid in (("image_grid_thw", image_grid_thw), ("video_grid_thw", video_grid_thw)):
        check_grid("rope_index", name, grid)
    if second_per_grid_ts is not None and second_per_grid_ts.dim() != 1:
        raise ValueError(
            f"rope_index: second_per_grid_ts must be [videos], found {list(second_per_grid_ts.shape)}"
        )
    check_merge("rope_index", spatial_merge_size)
    vision = Vision(
        spatial_merge_size, image_token_id, video_token_id, vision_start_token_id, tokens_per_second
    )
    given = (input_ids, image_grid_thw, video_grid_thw, second_per_grid_ts, attention_mask)
    run = traceable(reference, "rope_index", *given)
    result: tuple[Tensor, Tensor] = run(*given, vision)
    return result


def check_grid(operator: str, name: str, grid: Tensor | None) -> None:
    if grid is not None and (grid.dim() != 2 or grid.shape[1] != 3 or grid.dtype not in INTEGERS):
        raise ValueError(f"{operator}: {name} must be integers [N, 3], found {grid.dtype} {list(grid.shape)}")


def check_merge(operator: str, merge: int) -> None:
    if merge < 1:
        raise ValueError(f"{operator}: spatial_merge_size must be positive, found {merge}")
