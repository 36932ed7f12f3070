"""JSON documents with a format version and a checksum: what state and journal are written as.

A document is only data: reading one never runs anything, is bounded in size, and either gives the body back
as it was written or says in words why it is not usable.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

#: Documents beyond this size are not ours; reading one would only cost memory.
LIMIT = 16 * 1024 * 1024


class Unusable(Exception):
    """The document cannot be used; the text says why."""


def digest(data: bytes) -> str:
    """SHA-256 of ``data`` in hex."""
    return hashlib.sha256(data).hexdigest()


def dump(kind: str, version: int, body: dict[str, Any]) -> bytes:
    """``body`` as a sealed document of ``kind`` in format ``version``; ASCII, so that any path fits."""
    document = {"kind": kind, "format": version, "checksum": _checksum(kind, version, body), "body": body}
    return json.dumps(document, indent=1, sort_keys=True).encode("ascii") + b"\n"


def load(kind: str, version: int, data: bytes) -> dict[str, Any]:
    """The body of a document that `dump` wrote; raises `Unusable` for anything else."""
    if len(data) >= LIMIT:
        raise Unusable(f"it is larger than {LIMIT} bytes, so glm-pto did not write it")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"it is not readable as JSON ({type(error).__name__})") from error
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise Unusable(f"it is not a glm-pto {kind}")
    found = document.get("format")
    if not isinstance(found, int) or found != version:
        age = "a newer" if isinstance(found, int) and found > version else "an older"
        raise Unusable(f"{age} glm-pto wrote it (format {found!r:.20}; this one reads format {version})")
    body = document.get("body")
    if not isinstance(body, dict) or document.get("checksum") != _checksum(kind, version, body):
        raise Unusable("its checksum does not match its content: it was damaged or edited")
    return body


def _checksum(kind: str, version: int, body: dict[str, Any]) -> str:
    text = json.dumps([kind, version, body], sort_keys=True, separators=(",", ":"))
    return digest(text.encode("ascii"))
