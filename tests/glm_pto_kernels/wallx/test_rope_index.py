"""Three-axis position ids, against the walk over tokens that defines them."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from glm_pto_kernels.wallx import get_rope_index

IMAGE, VIDEO, START, MERGE, RATE = 101, 102, 100, 2, 2.0


def walk(row, mask, images, videos, seconds):
    """One sequence, token by token. ``images``, ``videos``: iterators shared by the batch."""
    live = [i for i, m in enumerate(mask) if m]
    positions = dict.fromkeys(range(len(row)), (1, 1, 1))
    following, at = 0, 0
    while at < len(live):
        token = row[live[at]]
        after_start = at > 0 and row[live[at - 1]] == START
        if after_start and token in (IMAGE, VIDEO):
            t, h, w = next(videos if token == VIDEO else images)
            step = next(seconds) * RATE if token == VIDEO else 0.0
            h, w = h // MERGE, w // MERGE
            span = [(int(f * step), r, c) for f in range(t) for r in range(h) for c in range(w)]
            for offset in span:
                positions[live[at]] = tuple(following + o for o in offset)
                at += 1
            following += max(int((t - 1) * step) + 1, h, w)
        else:
            positions[live[at]] = (following,) * 3
            following += 1
            at += 1
    highest = max((max(positions[i]) for i in live), default=-1)
    return [positions[i] for i in range(len(row))], highest + 1 - len(row)


def expected(ids, mask, images, videos, seconds):
    images, videos, seconds = (iter(x.tolist() if x is not None else []) for x in (images, videos, seconds))
    rows = [walk(r, m, images, videos, seconds) for r, m in zip(ids.tolist(), mask.tolist(), strict=True)]
    return torch.tensor([r[0] for r in rows]).permute(2, 0, 1), torch.tensor([[r[1]] for r in rows])


def tokens(*pieces):
    """Text counts and ("i" | "v", patches) spans, as ids."""
    ids = []
    for piece in pieces:
        if isinstance(piece, int):
            ids += [7] * piece
        else:
            ids += [START] + [IMAGE if piece[0] == "i" else VIDEO] * piece[1]
    return ids


def padded(rows, side):
    length = max(map(len, rows))
    fill = [[0] * (length - len(r)) for r in rows]
    ids = [f + r if side == "left" else r + f for f, r in zip(fill, rows, strict=True)]
    live = [[1] * len(r) for r in rows]
    mask = [f + m if side == "left" else m + f for f, m in zip(fill, live, strict=True)]
    return torch.tensor(ids), torch.tensor(mask)


def run(place, *inputs):
    """ids, mask, images, videos, seconds, as many as there are."""
    inputs += (None,) * (5 - len(inputs))
    ids, mask, images, videos, seconds = (x if x is None else x.to(place.device) for x in inputs)
    found = get_rope_index(ids, images, videos, seconds, mask, MERGE, IMAGE, VIDEO, START, RATE)
    return [x.cpu() for x in found]


@pytest.mark.parametrize("side", ["left", "right"])
def test_mixed_batch_with_padding_on_either_side(place, side):
    """The original counts left padding in its image path only."""
    images = torch.tensor([[1, 4, 6], [1, 2, 8], [1, 6, 4]])
    videos = torch.tensor([[3, 4, 4], [2, 2, 6]])
    seconds = torch.tensor([0.7, 1.5])
    ids, mask = padded(
        [
            tokens(3, ("i", 6), 2, ("v", 12), 4),
            tokens(5),
            tokens(("i", 4), ("i", 6), 1, ("v", 6)),
        ],
        side,
    )
    result = run(place, ids, mask, images, videos, seconds)
    reference = expected(ids, mask, images, videos, seconds)
    assert torch.equal(result[0], reference[0])
    assert torch.equal(result[1], reference[1])


def test_text_only(place):
    ids, mask = padded([tokens(5), tokens(3)], "left")
    position, delta = run(place, ids, mask)
    assert position[0].tolist() == [[0, 1, 2, 3, 4], [1, 1, 0, 1, 2]]
    assert delta.tolist() == [[0], [-2]]
    position, delta = run(place, ids)
    assert torch.equal(position, torch.arange(5).expand(3, 2, 5))
    assert delta.tolist() == [[0], [0]]


@pytest.mark.parametrize("width", [41, 47, 55, 61])
def test_widths_that_the_original_divides_wrongly(place, width):
    """It divides through a rounded fp32 reciprocal."""
    images = torch.tensor([[1, 2 * 6, 2 * width]])
    ids = torch.tensor([tokens(1, ("i", 6 * width), 1)])
    result = run(place, ids, None, images)
    reference = expected(ids, torch.ones_like(ids), images, None, None)
    assert torch.equal(result[0], reference[0])
    assert torch.equal(result[1], reference[1])


def test_more_than_64_images(place):
    images = torch.tensor([[1, 2, 4]] * 70)
    ids = torch.tensor([tokens(*[("i", 2)] * 70)])
    assert torch.equal(
        run(place, ids, None, images)[0], expected(ids, torch.ones_like(ids), images, None, None)[0]
    )


def test_seconds_default_to_one(place):
    videos = torch.tensor([[3, 2, 2]])
    ids = torch.tensor([tokens(1, ("v", 3))])
    found = run(place, ids, None, None, videos)
    assert torch.equal(found[0], run(place, ids, None, None, videos, torch.ones(1))[0])
    reference = expected(ids, torch.ones_like(ids), None, videos, torch.ones(1))
    assert torch.equal(found[0], reference[0])
    assert torch.equal(found[1], reference[1])


def test_a_single_column_and_a_single_patch(place):
    images = torch.tensor([[1, 6, 2], [1, 2, 2], [1, 2, 6]])
    ids = torch.tensor([tokens(1, ("i", 3), ("i", 1), 2, ("i", 3))])
    found, reference = run(place, ids, None, images), expected(ids, torch.ones_like(ids), images, None, None)
    assert torch.equal(found[0], reference[0])
    assert torch.equal(found[1], reference[1])


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_empty(place, shape):
    position, delta = run(place, torch.zeros(shape, dtype=torch.long), None, torch.tensor([[1, 2, 2]]))
    assert position.shape == (3, *shape)
    assert delta.shape == (shape[0], 1)


def by_compile(function, ids, images):
    return torch.compile(function, fullgraph=True, backend="aot_eager")(ids, images)


def by_trace(function, ids, images):
    return make_fx(function)(torch.zeros_like(ids), images)(ids, images)


@pytest.mark.parametrize("trace", [by_compile, by_trace])
def test_a_traced_function_computes_with_what_it_is_given(place, trace):
    ids, images = torch.tensor([tokens(2, ("i", 6), 3)] * 2), torch.tensor([[1, 4, 6]] * 2)
    ids, images = ids.to(place.device), images.to(place.device)

    def positions(ids, images):
        return get_rope_index(ids, images, None, None, None, MERGE, IMAGE, VIDEO, START, RATE)

    for found, exact in zip(trace(positions, ids, images), positions(ids, images), strict=True):
        assert torch.equal(found, exact)


def test_refuses(place):
    ids = torch.tensor([tokens(1, ("i", 1), ("i", 1), ("v", 1))])
    one = torch.tensor([[1, 2, 2]])
    if place.device == "cpu":  # on a GPU these are device assertions
        with pytest.raises(ValueError, match=r"image_grid_thw (has 1 rows|or video_grid_thw has rows)"):
            run(place, ids, None, one, one)
        with pytest.raises(ValueError, match=r"video_grid_thw (is missing|has rows)"):
            run(place, ids, None, one.repeat(2, 1))
    with pytest.raises(ValueError, match=r"second_per_grid_ts must be \[videos\], found \[1, 1\]"):
        run(place, ids, None, one, one, torch.ones(1, 1))
    with pytest.raises(ValueError, match="does not have the shape of input_ids"):
        run(place, ids, torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"image_grid_thw must be integers \[N, 3\]"):
        run(place, ids, None, torch.zeros(2, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="input_ids must be integers"):
        run(place, ids.float())


@pytest.mark.parametrize("given", [0, 1, 2])
def test_fewer_seconds_than_videos_are_refused(place, given):
    """The last one stood for all that were missing."""
    if place.device == "cuda":
        pytest.skip("a device assertion, which ends the process's use of the GPU")
    videos = torch.tensor([[2, 2, 2]] * 3)
    ids, mask = padded([tokens(1, ("v", 2)), tokens(("v", 2), 2, ("v", 2))], "left")
    with pytest.raises(ValueError, match=r"second_per_grid_ts has"):
        run(place, ids, mask, None, videos, torch.full((given,), 0.5))


def test_more_seconds_or_none_of_them_where_there_are_no_videos(place):
    ids, one = torch.tensor([tokens(1, ("v", 2), ("i", 1), 3)]), torch.tensor([[2, 2, 2]])
    image = torch.tensor([[1, 2, 2]])
    found = run(place, ids, None, image, one, torch.tensor([0.7, 9.0]))
    assert torch.equal(found[0], run(place, ids, None, image, one, torch.tensor([0.7]))[0])
    ids = torch.tensor([tokens(1, ("i", 1), 3)])
    assert torch.equal(run(place, ids, None, image, one, torch.ones(0))[0], run(place, ids, None, image)[0])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kind", ["i", "v"])
def test_negative_grids_are_refused_where_they_are_used(place, kind, axis):
    rows = 9  # more grids than a row has tokens
    grids = torch.tensor([[1, 2, 2]] * (rows + 1))
    grids[rows, axis] = -2
    ids = torch.tensor([tokens(1, (kind, 1))] * rows)
    given = (None, grids) if kind == "v" else (grids, None)
    run(place, ids, None, *given)  # nothing uses the last one
    if place.device == "cuda":
        return  # a device assertion, which ends the process's use of the GPU
    grids[rows - 1, axis] = -2
    with pytest.raises(ValueError, match="has a negative value"):
        run(place, ids, None, *given)
