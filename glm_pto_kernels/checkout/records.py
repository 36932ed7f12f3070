"""The record of a checkout: one file in the user's configuration folder, outside any package."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .reading import Checkout, Kernel, expanded
from .signatures import CheckoutError


def record_path(environment: Mapping[str, str] = os.environ) -> Path:
    """The file that remembers the checkout. Raises CheckoutError for a user without a home folder."""
    return expanded(environment.get("XDG_CONFIG_HOME") or "~/.config") / "glm-pto" / "kernels.json"


def record(checkout: Checkout) -> Path:
    """Remember a checkout and return the record's path. The file is replaced as a whole."""
    path = record_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"format": 1, **asdict(checkout)}, indent=1, sort_keys=True) + "\n"
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".kernels.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def recorded() -> Checkout | None:
    """The checkout that is remembered, or None. Raises CheckoutError for a record that cannot be read."""
    path = record_path()
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != 1:
            raise CheckoutError(f"{path}: a record of format {data['format']}, not 1; import again")
        kernels = {
            name: Kernel(_text(k["file"]), _text(k["function"]), tuple(k["parameters"]), k["sha256"])
            for name, k in data["kernels"].items()
        }
        companions = {name: _text(digest) for name, digest in data.get("companions", {}).items()}
        return Checkout(_text(data["folder"]), data["revision"], kernels, companions)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, CheckoutError):
            raise
        raise CheckoutError(
            f"{path}: not a record of kernels ({error!r}). Remove it and import again"
        ) from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} where a name was expected")
    return value


def remove() -> bool:
    """Forget the checkout. Returns whether there was one."""
    try:
        record_path().unlink()
    except FileNotFoundError:
        return False
    return True
