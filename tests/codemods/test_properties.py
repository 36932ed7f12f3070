"""Random files around a planted site, and random lives of a tree: apply, edit, upgrade, forget, revert.

300 lives in CI, 10,000 in the thorough tier. Whatever happens, revert gives back the text the user knows.
"""

from __future__ import annotations

import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from glm_pto.codemods.findings import Refusal
from tests.codemods import planted
from tests.codemods.planted import GATE, MARK, plant

RETURN = "return router_logits"

HEADS = (
    "",
    '"""Docstring."""\n',
    '"""Doc\nstring."""\nfrom __future__ import annotations\n',
    "#!/usr/bin/env python\n# licence\n\n",
    "try:\n    import fast\nexcept ImportError:\n    fast = None\n",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import os\n",
    "if True: X = 1\n",
)
BETWEEN = (
    "",
    "\n\n",
    "# a comment\n",
    'TEXT = """\n    if x:  # glm-pto: gate 1 00000000\n\ttabs\n  """\n',
    "@decorate\n@decorate(1)\nclass Other(Base):\n    def forward(self, hidden_states):\n        "
    + GATE
    + "\n",
    "async def f(x):\n    async with x as y:\n        return [z async for z in y]\n",
    "def g(a, /, b=1, *, c: int = 2) -> None: ...\n",
    "    \n\t\n",
    "x = [\n  1,\n      2,\n]\n",
    'y = f"{1 + 1!r:>{3}} {{}}" \\\n    "more"\n',
    "\f\n",
    "\f# a new page\n",
)
CALLS = (
    GATE,
    "router_logits = self.gate(\n            hidden_states.to(dtype=torch.float32)\n        )",
    "router_logits = \\\n  self.gate(hidden_states.to(dtype=torch.float32))",
    "router_logits = self.gate(hidden_states.to(dtype=torch.float32))  # comment",
    "router_logits = self.gate(  # a\n# b\n   hidden_states.to(dtype=torch.float32))",
)
BEFORE = ("", "x = 1\n", "# above\n", "if x:\n    pass\n", '"""doc"""\n', "s = '''\n  a\n b'''\n", "\f\n")
AFTER = (
    RETURN,
    "# below\n" + RETURN,
    "    # deeper\n" + RETURN,
    "\n\n    # far and deeper\n\n" + RETURN,
    "   \n" + RETURN,
    "y = router_logits\n" + RETURN,
    "with x: pass\n" + RETURN,
    "\f\n" + RETURN,
)
WRAPS = ("", "if a:\n", "with a as b, c:\n", "for i in x:\n")
ENDS = ("", "\n", "\n# end", "\n\n\nclass Last:\n    pass\n", "\n\n    # deeper end\n")


@dataclass(frozen=True)
class Text:
    """A file in parts, so that hypothesis can take one away after the other."""

    head: str
    between: tuple[str, ...]
    before: str
    call: str
    after: str
    wrap: str
    end: str
    unit: str
    ending: str
    odd: int
    codec: str
    comment: str

    def data(self) -> bytes:
        """The bytes of the file."""
        depth = 3 if self.wrap else 2
        inner = "    " * depth
        body = "".join(inner + line if line.strip() else line for line in _lines(self.before))
        wrap = "        " + self.wrap if self.wrap else ""
        call = inner + self.call.replace("\n            ", "\n" + inner + "    ") + "\n"
        after = "".join("        " + line if line.strip() else line for line in _lines(self.after))
        method = (
            f"class Glm4MoE(nn.Module):\n    def forward(self, hidden_states, x=(), a=None, c=None):\n{wrap}"
        )
        imports = "import torch\nfrom torch import nn\n"
        text = self.head + imports + "".join(self.between) + method + body + call + after + self.end
        text = self._prologue() + text.replace("    ", self.unit)
        lines = text.split("\n")
        ends = ["\r\n" if i == self.odd else self.ending for i in range(len(lines) - 1)]
        joined = "".join(line + end for line, end in zip(lines, [*ends, ""], strict=True))
        return joined.encode(self.codec)

    def _prologue(self) -> str:
        cookie = "" if self.codec in ("utf-8", "utf-8-sig") else f"# vim: set fileencoding={self.codec} :\n"
        return f"{cookie}# {self.comment}\n" if self.comment or cookie else ""


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


CODECS = st.sampled_from(
    [("utf-8", "naïve 算子"), ("utf-8", ""), ("utf-8-sig", "é"), ("latin-1", "café"), ("gbk", "算子")]
)


@st.composite
def texts(draw: st.DrawFn) -> Text:
    codec, comment = draw(CODECS)
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    return Text(
        head=draw(st.sampled_from(HEADS)),
        between=tuple(draw(st.lists(st.sampled_from(BETWEEN), max_size=4))),
        before=draw(st.sampled_from(BEFORE)),
        call=draw(st.sampled_from(CALLS)),
        after=draw(st.sampled_from(AFTER)),
        wrap=draw(st.sampled_from(WRAPS)),
        end=draw(st.sampled_from(ENDS)),
        unit=draw(st.sampled_from(["    ", "\t", "  ", "   "])),
        ending=ending,
        odd=draw(st.integers(-1, 30)) if ending == "\n" else -1,
        codec=codec,
        comment=comment,
    )


STEPS = st.lists(
    st.one_of(
        st.sampled_from(["apply", "revert", "forget", "edit", "append"]),
        st.tuples(st.just("upgrade"), texts()),
    ),
    min_size=1,
    max_size=6,
)


class Life:
    """A tree, the text that the user believes it has, and whether a guard stands in it."""

    def __init__(self, root: Path, text: Text, mode: int) -> None:
        self.root, self.base, self.mode = root, text.data(), mode
        self.applied = False
        self.turn = 0
        self.file = plant(root, self.base)
        self.file.chmod(mode)

    def apply(self) -> None:
        before = self.file.read_bytes()
        try:
            planted.apply(self.root)
        except Refusal as refusal:
            assert "glm4_moe.py" in str(refusal)
            assert self.file.read_bytes() == before
            raise AssertionError(f"refused: {refusal}") from refusal
        once = self.file.read_bytes()
        assert once.count(MARK) == self.base.count(MARK) + 1
        planted.apply(self.root)
        assert self.file.read_bytes() == once
        self.applied = True

    def revert(self) -> None:
        planted.revert(self.root)
        assert self.file.read_bytes() == self.base
        self.applied = False

    def forget(self) -> None:
        shutil.rmtree(self.root / ".glm-pto", ignore_errors=True)

    def edit(self) -> None:
        self.turn += 1
        self._rewrite(
            lambda data: data.replace(b"return router_logits", b"return router_logits + %d" % self.turn)
        )

    def append(self) -> None:
        self.turn += 1
        self._rewrite(lambda data: data + b"\n# user %d\n" % self.turn)

    def upgrade(self, text: Text) -> None:
        self.base = text.data()
        self._write(self.base)
        self.applied = False

    def _rewrite(self, edit: object) -> None:
        assert callable(edit)
        self.base = edit(self.base)
        self._write(edit(self.file.read_bytes()))

    def _write(self, data: bytes) -> None:
        new = self.file.with_name("new")
        new.write_bytes(data)
        new.chmod(self.mode)
        new.rename(self.file)

    def check(self) -> None:
        assert stat.S_IMODE(self.file.stat().st_mode) == self.mode
        found = {path.name for path in self.file.parent.iterdir()}
        assert found == {self.file.name}, "something is left over"
        if not self.applied:
            assert self.file.read_bytes() == self.base


def live(text: Text, steps: list[object], mode: int) -> None:
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        life = Life(Path(folder), text, mode)
        for step in [*steps, "apply", "revert"]:
            name, *arguments = step if isinstance(step, tuple) else (step,)
            getattr(life, name)(*arguments)
            life.check()
        assert not (Path(folder) / ".glm-pto").exists()


COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    "database": None,
    "print_blob": True,
}


@settings(max_examples=300, derandomize=True, **COMMON)
@given(texts(), STEPS, st.sampled_from([0o644, 0o600, 0o755, 0o664]))
def test_any_life_of_a_tree_ends_with_the_users_bytes(text: Text, steps: list[object], mode: int) -> None:
    live(text, steps, mode)


@pytest.mark.thorough
@pytest.mark.parametrize("thousand", range(10))
def test_ten_thousand_lives(thousand: int) -> None:
    """A thousand a part, from a seed of its own: parts run side by side and tell how far they are."""
    lives = given(texts(), STEPS, st.sampled_from([0o644, 0o600, 0o755, 0o664]))(live)
    seed(thousand)(settings(max_examples=1000, **COMMON)(lives))()
