"""What the functions of an installed operator layer ask for, read from its source: nothing is imported."""

from __future__ import annotations

import ast
from pathlib import Path

from glm_pto.codemods import reading
from glm_pto.codemods.source import Unreadable


def function(folder: Path, name: str) -> ast.arguments | None:
    """Parameters of ``name`` as the package in ``folder`` offers it; re-exports are followed inside it.

    None where it is not there; raises `Unreadable` where a file that should say cannot be read or parsed.
    """
    return _find(folder, folder if folder.is_file() else folder / "__init__.py", name, ())


def names_bound(node: ast.stmt) -> list[str]:
    """The names that a statement at a module's top level binds, its own blocks included."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [a.asname or a.name.partition(".")[0] for a in node.names]
    names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.ExceptHandler)):
            names += names_bound(child) if isinstance(child, ast.stmt) else _in_handler(child)
    return names


def _in_handler(handler: ast.ExceptHandler) -> list[str]:
    return [name for node in handler.body for name in names_bound(node)]


def misfit(call: ast.Call, wanted: ast.arguments) -> str | None:
    """Why Python would refuse the call with a TypeError, or None. Starred arguments are taken on trust."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    positional = [a.arg for a in (*wanted.posonlyargs, *wanted.args)]
    keywords = {k.arg for k in call.keywords if k.arg}
    if len(call.args) > len(positional) and wanted.vararg is None:
        return f"takes {len(positional)} positional arguments, {len(call.args)} are given"
    filled = set(positional[: len(call.args)])
    by_keyword = {*(a.arg for a in wanted.args), *(a.arg for a in wanted.kwonlyargs)}
    if keywords & filled:
        return f"gets {', '.join(sorted(keywords & filled))} twice"
    if wanted.kwarg is None and keywords - by_keyword:
        return f"has no parameter {', '.join(sorted(keywords - by_keyword))}"
    required = positional[: len(positional) - len(wanted.defaults)]
    required += [
        a.arg for a, default in zip(wanted.kwonlyargs, wanted.kw_defaults, strict=True) if not default
    ]
    missing = [name for name in required if name not in filled | keywords]
    return f"asks for {', '.join(missing)}, which is not given" if missing else None


def _find(root: Path, file: Path, name: str, seen: tuple[Path, ...]) -> ast.arguments | None:
    tree = _parse(file)
    for node in reversed(tree.body if tree and file not in seen else []):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return node.args
        if isinstance(node, ast.ImportFrom):
            original = next((a.name for a in node.names if (a.asname or a.name) == name), None)
            target = None if original is None else _module(root, file, node)
            if original is not None and target is not None:
                return _find(root, target, original, (*seen, file))
    return None


def _module(root: Path, file: Path, node: ast.ImportFrom) -> Path | None:
    """The file that ``from X import ...`` reads, where X is inside the package."""
    if node.level:
        base = file.parents[node.level - 1]
        path = base.joinpath(*(node.module or "").split(".")) if node.module else base
    else:
        first, *rest = (node.module or "").split(".")
        if first != root.name:
            return None
        path = root.joinpath(*rest)
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((c for c in candidates if c.is_file()), None)


def _parse(file: Path) -> ast.Module | None:
    try:
        return ast.parse(reading.load(file))
    except FileNotFoundError:
        return None
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise Unreadable(f"{file}: cannot be read ({why})") from None
