"""Suggest the name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable

#: Shorter words are part of, or short for, too many names.
ENOUGH = 3


def nearest(word: str, names: Iterable[str]) -> str:
    """A sentence that suggests the nearest of ``names``, else lists them; starts with a space."""
    known = list(names)
    found = _meant(word.lower().replace("-", "_"), known)
    if found:
        return f" Did you mean {' or '.join(map(repr, found))}?"
    return f" Choose from: {', '.join(known)}."


def _meant(word: str, known: list[str]) -> list[str]:
    """What the word is part of, is spelt much like, or is short for, in this order."""
    from difflib import get_close_matches

    long = len(word) >= ENOUGH
    return (
        [name for name in known if long and word in name]
        or get_close_matches(word, known, n=1, cutoff=0.7)
        or [name for name in known if long and any(_short(word, part) for part in name.split("_"))]
        or get_close_matches(word, known, n=1, cutoff=0.5)
    )


def _short(word: str, full: str) -> bool:
    """Is the word the full one with letters left out, like attn?"""
    letters = iter(full)
    return word[0] == full[0] and all(letter in letters for letter in word)
