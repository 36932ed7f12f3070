"""Suggest the name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, names: Iterable[str]) -> str:
    """A sentence that suggests the nearest of ``names``, else lists them; starts with a space."""
    from difflib import get_close_matches

    known = list(names)
    folded = word.lower().replace("-", "_")
    found = get_close_matches(folded, known, n=1, cutoff=0.5) or [n for n in known if folded in n][:1]
    return f" Did you mean {found[0]!r}?" if found else f" Choose from: {', '.join(known)}."
