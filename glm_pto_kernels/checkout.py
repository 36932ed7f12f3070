"""The user's own checkout of the PyPTO project's ``models/glm_v4_5``: checked by reading it, and recorded.

Nothing here imports the checkout, torch, or the rest of this package, so that the command line can load
this file by itself. The record is one file in the user's configuration folder (``XDG_CONFIG_HOME``, else
``~/.config``), outside any package: a reinstall keeps it, and nothing of the checkout is copied.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LARGEST = 1 << 20  # bytes of a kernel's file; the real ones have some 20 KiB
PACKED = 16 << 20  # bytes that are read of git's list of packed branches
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
PLACES = (".", "models/glm_v4_5", "examples/models/glm_v4_5", "glm_v4_5")
QUANT = (
    "hidden_states residual input_layernorm_weight input_layernorm_bias atten_qkv_input_scale_reciprocal "
    "atten_qkv_input_offset atten_qkv_weight atten_qkv_quant_bias atten_qkv_deq_scale atten_q_norm_weight "
    "atten_q_norm_bias atten_k_norm_weight atten_k_norm_bias cos sin query key value residual_res"
)


@dataclass(frozen=True)
class Entry:
    """Where an operator's kernel is looked for, the parameters it must have, and those it may have."""

    file: str
    function: str
    required: frozenset[str]
    optional: frozenset[str] = frozenset()


def _entry(file: str, function: str, required: str, optional: str = "") -> Entry:
    return Entry(file, function, frozenset(required.split()), frozenset(optional.split()))


ENTRIES = {
    "gate": _entry("glm_gate.py", "gate", "hidden_states gate_weight router_logits_out"),
    "select_experts": _entry(
        "glm_select_experts.py",
        "select_experts",
        "router_logits top_k renormalize topk_group num_expert_group e_score_correction_bias "
        "topk_weights topk_ids",
    ),
    "paged_attention": _entry(
        "glm_attention.py",
        "attention",
        "query key_cache value_cache block_tables actual_seqs attn_res",
        "softmax_scale tile_config",
    ),
    "attention_pre": _entry("glm_attention_pre_quant.py", "attention_pre_quant", QUANT, "eps"),
    "shared_expert": _entry(
        "glm_ffn_shared_expert_quant.py",
        "ffn_shared_expert_quant",
        "hidden_states w13 w13_scale w2 w2_scale ffn_res",
    ),
}


class CheckoutError(ValueError):
    """A checkout that cannot be used. The message has one line for each thing found."""


@dataclass(frozen=True)
class Kernel:
    """One kernel of a checkout: its file, function, parameters in their order, and the file's digest."""

    file: str
    function: str
    parameters: tuple[str, ...]
    sha256: str


@dataclass(frozen=True)
class Checkout:
    """A checkout that was read: its kernel folder, the commit if it is a git work tree, and its kernels.

    ``companions``: digests of the other files that the kernels can import, by their names in the folder.
    """

    folder: str
    revision: str | None
    kernels: dict[str, Kernel]
    companions: dict[str, str]


def inspect(folder: str | Path) -> Checkout:
    """Read the kernels of a checkout.

    Args:
        folder: the checkout's root, or its ``models/glm_v4_5``.

    Raises:
        CheckoutError: no such folder, or kernels that are missing or have signatures not known here.
    """
    root = _expanded(folder)
    found = next((root / place for place in PLACES if (root / place / "glm_gate.py").is_file()), None)
    if found is None:
        looked = ", ".join(str(root / place) for place in PLACES)
        raise CheckoutError(f"{root}: there is no glm_gate.py in {looked}; give the checkout's folder")
    kernels, problems = {}, []
    for operator, entry in ENTRIES.items():
        try:
            kernels[operator] = _read(found / entry.file, entry)
        except CheckoutError as error:
            problems.append(str(error))
    if problems:
        raise CheckoutError("\n".join(problems))
    return Checkout(str(found.resolve()), _revision(found.resolve()), kernels, _companions(found))


def _companions(folder: Path) -> dict[str, str]:
    kernels = {entry.file for entry in ENTRIES.values()}
    files = sorted({*folder.glob("*.py"), *folder.glob("utils/**/*.py")})
    names = [path.relative_to(folder).as_posix() for path in files if path.is_file()]
    return {name: _digest(folder / name) for name in names if name not in kernels}


def _digest(path: Path) -> str:
    """Of a file, or of its size and beginning where it is too large for source."""
    with path.open("rb") as file:
        data = file.read(LARGEST)
    return hashlib.sha256(data + (b"%d" % path.stat().st_size)).hexdigest()


def _expanded(folder: str | Path) -> Path:
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:  # no such user, or a user without a home
        raise CheckoutError(f"{folder}: {error} Give the folder without ~") from None


def _read(path: Path, entry: Entry) -> Kernel:
    if not path.is_file():
        raise CheckoutError(f"{path}: expected this file with a function {entry.function}, found none")
    if path.stat().st_size > LARGEST:
        raise CheckoutError(f"{path}: larger than {LARGEST} bytes, which is no kernel")
    data = path.read_bytes()
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        raise CheckoutError(f"{path}: not Python that this interpreter can read: {error!r}") from None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == entry.function:
            digest = hashlib.sha256(data).hexdigest()
            return Kernel(entry.file, entry.function, _parameters(path, node, entry), digest)
    raise CheckoutError(f"{path}: expected a function {entry.function}, found none")


def _parameters(path: Path, node: ast.FunctionDef, entry: Entry) -> tuple[str, ...]:
    given = node.args
    positional = [a.arg for a in (*given.posonlyargs, *given.args)]
    names = [*positional, *(a.arg for a in given.kwonlyargs)]
    with_default = set(positional[len(positional) - len(given.defaults) :])
    with_default |= {
        a.arg for a, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is not None
    }
    unknown = [n for n in names if n not in entry.required | entry.optional and n not in with_default]
    missing = sorted(entry.required - set(names))
    if unknown or missing or given.posonlyargs or given.vararg:
        raise CheckoutError(
            f"{path}:{node.lineno}: the signature {node.name}({ast.unparse(given)}) is not known: "
            f"not expected: {', '.join(unknown) or 'none'}; missing: {', '.join(missing) or 'none'}"
        )
    return tuple(n for n in names if n in entry.required | entry.optional)


def _revision(folder: Path) -> str | None:
    """The commit of the git work tree around ``folder``, read without git; None where none can be told."""
    try:
        for parent in (folder, *folder.parents):
            git = parent / ".git"
            if git.is_file():  # a linked work tree or a submodule: the file says where its folder is
                place = _line(git)
                inside = place.removeprefix("gitdir: ")
                return _commit(parent / inside) if inside != place else None
            if (git / "HEAD").is_file():
                return _commit(git)
    except OSError:  # not ours to read, or a name beyond what the system takes
        return None
    return None


def _commit(git: Path) -> str | None:
    """What HEAD of a git folder is; of the files that it leads to, nothing but a commit is ever taken."""
    head = _line(git / "HEAD")
    name = head.removeprefix("ref: ")
    commit = head
    if name != head:
        if not name.startswith("refs/") or ".." in name.split("/"):
            return None
        common = git / _line(git / "commondir")  # a linked work tree shares the branches of the main one
        commit = _line(git / name) or _line(common / name) or _packed(common / "packed-refs", name)
    return commit if COMMIT.fullmatch(commit) else None


def _packed(path: Path, name: str) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        lines = file.read(PACKED).split(b"\n")[:-1]  # what is behind the last end of a line may be cut off
    wanted = b" " + os.fsencode(name)
    return next((os.fsdecode(line.removesuffix(wanted)) for line in lines if line.endswith(wanted)), "")


def _line(path: Path) -> str:
    """The first line of a file of git's, whatever its bytes are; empty for anything but a file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return os.fsdecode(file.readline(5000)).strip()


def record_path(environment: Mapping[str, str] = os.environ) -> Path:
    """The file that remembers the checkout. Raises CheckoutError for a user without a home folder."""
    return _expanded(environment.get("XDG_CONFIG_HOME") or "~/.config") / "glm-pto" / "kernels.json"


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


def changed(checkout: Checkout) -> list[str]:
    """What differs between a recorded checkout and the disk, one line each."""
    lines = []
    for operator, kernel in checkout.kernels.items():
        path = Path(checkout.folder) / kernel.file
        if not path.is_file():
            lines.append(f"{operator}: {path} is gone")
        elif path.stat().st_size > LARGEST or hashlib.sha256(path.read_bytes()).hexdigest() != kernel.sha256:
            lines.append(f"{operator}: {path} has changed since it was imported")
    present = _companions(Path(checkout.folder)) if checkout.companions else {}
    for name in sorted({*checkout.companions, *present}):
        if checkout.companions.get(name) != present.get(name):
            path = Path(checkout.folder) / name
            lines.append(f"{path}, which the kernels can import, has changed since they were imported")
    return lines
