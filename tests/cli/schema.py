"""The part of JSON Schema that `docs/schema` uses; an unknown keyword is an error, never ignored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs" / "schema"
TYPES = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
    "object": dict,
    "array": list,
}
NOTES = {"$schema", "$defs", "title", "description"}


def faults(name: str, document: Any) -> list[str]:
    """Everything in which ``document`` differs from ``docs/schema/NAME.json``."""
    root = json.loads((FOLDER / f"{name}.json").read_text())
    return list(_check(root, root, document, "$"))


def _check(root: dict[str, Any], rule: dict[str, Any], value: Any, at: str) -> list[str]:
    if "$ref" in rule:
        return _check(root, root["$defs"][rule["$ref"].rpartition("/")[2]], value, at)
    found: list[str] = []
    for keyword, wanted in rule.items():
        if keyword == "type":
            names = [wanted] if isinstance(wanted, str) else wanted
            exact = [
                n
                for n in names
                if isinstance(value, TYPES[n]) and (n != "integer" or not isinstance(value, bool))
            ]
            found += [] if exact else [f"{at}: {value!r} is no {wanted}"]
        elif keyword == "enum":
            found += [] if value in wanted else [f"{at}: {value!r} is none of {wanted}"]
        elif keyword == "minimum":
            found += [] if not isinstance(value, int) or value >= wanted else [f"{at}: {value} < {wanted}"]
        elif keyword == "pattern":
            found += (
                []
                if isinstance(value, str) and re.search(wanted, value)
                else [f"{at}: {value!r} does not match {wanted}"]
            )
        elif keyword == "required":
            found += [f"{at}: no {name!r}" for name in wanted if name not in value]
        elif keyword == "items":
            found += [f for i, item in enumerate(value) for f in _check(root, wanted, item, f"{at}[{i}]")]
        elif keyword == "properties":
            found += [
                f for n, r in wanted.items() if n in value for f in _check(root, r, value[n], f"{at}.{n}")
            ]
        elif keyword == "additionalProperties":
            extra = [n for n in value if n not in rule.get("properties", {})]
            if wanted is False:
                found += [f"{at}: unknown {name!r}" for name in extra]
            else:
                found += [f for n in extra for f in _check(root, wanted, value[n], f"{at}.{n}")]
        elif keyword not in NOTES:
            raise AssertionError(f"the schema uses {keyword}, which this checker does not know")
    return found
