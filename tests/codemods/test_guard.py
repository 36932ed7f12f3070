"""The guard and its inverse on text of every kind: what comes back is the file, to the byte."""

from __future__ import annotations

import ast

import pytest

from glm_pto.codemods import edit, guard, imports, locate, source
from glm_pto.codemods.recipe import Form

FORM = Form(
    name="call",
    file="module.py",
    scope="Layer.forward",
    site="out = self.run($x)",
    condition="K.USE_PTO_GATE and K.gate_supported(self, $x)",
    branch="out = K.gate(self, $x)",
    releases="all",
)

BEFORE = '''\
"""Docstring."""

from __future__ import annotations

import os
import sys


class Layer:
    def forward(self, x):
        before = 1
        # why the call is made
        out = self.run(x)  # trailing
        return out
'''

AFTER = '''\
"""Docstring."""

from __future__ import annotations

import os
import sys
import glm_pto_kernels  # glm-pto: import 1


class Layer:
    def forward(self, x):
        before = 1
        # why the call is made
        if {condition}:  # glm-pto: gate 1 {digest}
            out = glm_pto_kernels.gate(self, x)
        else:
            out = self.run(x)  # trailing
        return out
'''


def wrap(data: bytes, form: Form = FORM) -> bytes:
    file = source.read("module.py", data)
    (match,) = locate.matches(file, form)
    return edit.apply(file, [("gate", match)]).data


def strip(data: bytes) -> bytes:
    return edit.strip(source.read("module.py", data)).data


def body(text: str, head: str = "import os\n\n") -> str:
    """A module with ``text`` as the method's body."""
    return f"{head}class Layer:\n    def forward(self, x):\n{text}"


def test_writes_the_one_form():
    after = wrap(BEFORE.encode()).decode()
    (found,) = guard.find(source.read("module.py", after.encode()))
    digest = after.partition("gate 1 ")[2][:8]
    condition = "glm_pto_kernels.USE_PTO_GATE and glm_pto_kernels.gate_supported(self, x)"
    assert after == AFTER.format(condition=condition, digest=digest)
    assert (found.site, found.fault) == ("gate", "")


CALL = "        out = self.run(x)\n"
CASES = {
    "plain": BEFORE,
    "crlf": BEFORE.replace("\n", "\r\n"),
    "cr_only": BEFORE.replace("\n", "\r"),
    "one_odd_ending_before_the_site": BEFORE.replace("before = 1\n", "before = 1\r\n"),
    "one_odd_ending_at_the_site": BEFORE.replace("# trailing\n", "# trailing\r\n"),
    "one_odd_ending_after_the_imports": BEFORE.replace("import sys\n", "import sys\r\n"),
    "tabs": BEFORE.replace("    ", "\t"),
    "three_spaces": BEFORE.replace("    ", "   "),
    "no_final_newline": body("        y = x\n        out = self.run(x)"),
    "site_on_last_line_with_comment": body("        y = x\n        out = self.run(x)  # last"),
    "many_lines": body("        out = self.run(\n            x\n        )\n        return out\n"),
    "closing_bracket_left_of_the_block": body("        out = self.run(\n   x\n )\n        return out\n"),
    "comments_inside_the_call": body(
        "        out = self.run(  # a\n            # b\n            x,\n        )\n"
    ),
    "backslashes": body("        out = \\\n   self.run(x)\n        return out\n"),
    "backslash_with_crlf": body("        out = \\\n   self.run(x)\n").replace("\n", "\r\n"),
    "deeper_comment_after": body(CALL + "            # deeper\n        return out\n"),
    "deeper_blank_line_after": body(CALL + "               \n        return out\n"),
    "deeper_comment_at_the_end_of_an_arm": body(
        "        if x:\n            out = self.run(x)\n                # deeper\n        return out\n"
    ),
    "shallower_comment_after": body(CALL + "  # odd\n        return out\n"),
    "comment_in_column_0_before": body("        y = 1\n# zero\n" + CALL),
    "blank_lines_around": body("        y = 1\n\n\n" + CALL + "\n\n        return out\n"),
    "end_of_the_file_is_blanks": body(CALL + "   \n\n"),
    "in_an_if_arm": body(
        "        if x:\n            out = self.run(x)\n        else:\n            out = 1\n"
    ),
    "in_an_else_arm": body(
        "        if x:\n            out = 1\n        else:\n            out = self.run(x)\n"
    ),
    "in_an_elif_arm": body(
        "        if x:\n            out = 1\n        elif y:\n            out = self.run(x)\n"
    ),
    "in_try": body("        try:\n            out = self.run(x)\n        finally:\n            pass\n"),
    "in_except": body("        try:\n            pass\n        except E:\n            out = self.run(x)\n"),
    "in_with_and_for": body("        with x:\n            for i in x:\n                out = self.run(x)\n"),
    "in_match": body("        match x:\n            case 1:\n                out = self.run(x)\n"),
    "form_feed_elsewhere": BEFORE.replace("\n\nclass", "\n\f\nclass"),
    "form_feed_line_in_the_body": body("        y = 1\n\f\n" + CALL),
    "unicode_separators_in_a_string": BEFORE.replace("Docstring", "Doc\u2028str\x1cing\x85"),
    "vertical_tab_and_form_feed_in_a_comment": BEFORE.replace("why the", "why\x0b\x0cthe"),
    "decorated_and_async": BEFORE.replace("    def ", "    @deco(\n        1\n    )\n    async def "),
    "class_below_if": "import os\nif os:\n  class Layer:\n    def forward(self, x):\n"
    "      out = self.run(x)\n",
    "docstring_and_no_imports": body(CALL, '"""Doc."""\n'),
    "no_docstring_and_no_imports": body(CALL, "# licence\n"),
    "future_import_only": body(CALL, "from __future__ import annotations\n"),
    "import_in_parentheses": body(CALL, "from os import (\n    path,\n)\n"),
    "first_import_below_try": body(CALL, "try:\n    import os\nexcept ImportError:\n    pass\n"),
    "import_only_for_type_checking": body(
        CALL, "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import glm_pto_kernels\n"
    ),
    "imported_under_another_name": body(CALL, "import glm_pto_kernels as other\n"),
    "imports_below_the_site_too": body(CALL) + "import late\n",
    "two_imports_on_one_line": body(CALL, "import os; import sys\n"),
}


@pytest.mark.parametrize("text", CASES.values(), ids=CASES.keys())
def test_round_trip(text):
    before = text.encode()
    after = wrap(before)
    assert after.count(b"# glm-pto: gate 1 ") == 1
    assert after.count(b"# glm-pto: import 1") == 1
    assert strip(after) == before
    assert _without_guard(after) == ast.dump(ast.parse(before))
    kept = [line for line in source.read("m", after).lines if "# glm-pto: " not in line]
    original = [line.lstrip() for line in source.read("m", before).lines]
    assert [k.lstrip() for k in kept if "glm_pto_kernels.gate" not in k and k.strip() != "else:"] == [
        line for line in original if line.strip() != "else:"
    ]


def _without_guard(data: bytes) -> str:
    """Independent of the engine: drop the guard and the import from the syntax tree."""

    class Undo(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> object:
            self.generic_visit(node)
            return node.orelse if "USE_PTO_GATE" in ast.dump(node.test) else node

    tree = ast.parse(data)
    mine = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n").index(imports.IMPORT.encode()) + 1
    tree.body = [n for n in tree.body if not (isinstance(n, ast.Import) and n.lineno == mine)]
    return ast.dump(Undo().visit(tree))


def test_inserted_lines_take_the_ending_next_to_them():
    text = BEFORE.replace("# trailing\n", "# trailing\r\n").replace("import sys\n", "import sys\r\n")
    lines = source.read("m", wrap(text.encode())).lines
    ours = [line for line in lines if "glm" in line or line.strip() == "else:"]
    assert len(ours) == 4
    assert all(line.endswith("\r\n") for line in ours)
    assert sum(line.endswith("\r\n") for line in lines) == len(ours) + 2


@pytest.mark.parametrize(("codec", "letter"), [("latin-1", "é"), ("gbk", "中"), ("utf-8", "€")])
def test_keeps_the_codec(codec, letter):
    before = body(CALL, f"# -*- coding: {codec} -*-\nname = '{letter}'\n").encode(codec)
    after = wrap(before)
    assert strip(after) == before
    assert letter.encode(codec) in after


def test_keeps_the_byte_order_mark():
    before = b"\xef\xbb\xbf" + BEFORE.encode()
    after = wrap(before)
    assert after.startswith(b"\xef\xbb\xbf")
    assert after.count(b"\xef\xbb\xbf") == 1
    assert strip(after) == before


def test_adds_no_import_where_the_file_binds_the_name():
    before = body(CALL, "import glm_pto_kernels\n").encode()
    after = wrap(before)
    assert after.count(b"import glm_pto_kernels") == 1
    assert strip(after) == before


def test_adds_no_import_where_try_binds_the_name():
    head = "try:\n    import glm_pto_kernels\nexcept ImportError:\n    raise\n"
    after = wrap(body(CALL, head).encode())
    assert after.count(b"import glm_pto_kernels") == 1
    assert strip(after) == body(CALL, head).encode()


REFUSED = {
    "shares_its_line": (body("        y = 1; out = self.run(x)\n"), "not alone on its line"),
    "something_follows": (body("        out = self.run(x); y = 1\n"), "follows the statement"),
    "below_if_on_one_line": (body("        if x: out = self.run(x)\n"), "not alone on its line"),
    "form_feed_in_the_indentation": (body("        y = 1\n\f        out = self.run(x)\n"), "form feed"),
    "name_is_a_parameter": (body(CALL).replace("(self, x)", "(self, x, glm_pto_kernels)"), "local name"),
    "name_is_assigned": (body("        glm_pto_kernels = 1\n" + CALL), "local name"),
    "name_means_something_else": (body(CALL, "glm_pto_kernels = None\n"), "bound to something else"),
    "name_is_another_module": (body(CALL, "import os as glm_pto_kernels\n"), "bound to something else"),
}


@pytest.mark.parametrize(("text", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses(text, why):
    if "(self, x, glm" in text:
        text = text.replace("self.run(x, glm_pto_kernels)", "self.run(x)")
    with pytest.raises(source.Unreadable, match=why):
        wrap(text.encode())


ANY = Form("any", "module.py", "Layer.forward", "out = $x", "K.A", "out = K.b()", "all")


def test_refuses_an_f_string_whose_meaning_would_change():
    text = body('        out = f"""{(\n        x\n        )=}"""\n')
    with pytest.raises(
        source.Unreadable, match=r"^module\.py:\d+: moving .* changes what they mean .*--skip"
    ):
        wrap(text.encode(), ANY)


def test_names_file_and_line_where_an_else_branch_cannot_be_moved_back():
    after = wrap(BEFORE.encode()).decode()
    line = "            out = self.run(x)  # trailing\n"
    assert line in after
    edited = after.replace(line, '            out = f"""{(\n            x\n            )=}"""\n')
    with pytest.raises(source.Unreadable, match=r"^module\.py:\d+: moving .* take its guard out by hand"):
        strip(edited.encode())


def test_moves_only_code_never_the_content_of_strings():
    text = body('        out = """\n        kept\n  kept"""\n        return out\n')
    after = wrap(text.encode(), ANY)
    assert b'            out = """\n        kept\n  kept"""\n' in after
    assert strip(after) == text.encode()


def test_keeps_what_the_user_changes_in_the_else_branch():
    after = wrap(BEFORE.encode()).decode()
    old, new = (
        "            out = self.run(x)  # trailing\n",
        "            # mine\n            out = self.walk(x)\n",
    )
    assert strip(after.replace(old, new).encode()).decode() == BEFORE.replace(
        "        out = self.run(x)  # trailing\n", "        # mine\n        out = self.walk(x)\n"
    )


def test_keeps_what_the_user_changes_elsewhere():
    after = wrap(BEFORE.encode()).decode() + "\n\ndef mine():\n    pass\n"
    assert strip(after.encode()).decode() == BEFORE + "\n\ndef mine():\n    pass\n"


EDITS = {
    "condition": ("gate_supported(self, x)", "gate_supported(self, y)"),
    "branch": ("kernels.gate(self, x)\n", "kernels.gate(self, x) + 1\n"),
    "branch_longer": ("        else:\n", "            more = 1\n        else:\n"),
    "elif": ("        else:\n", "        elif x:\n            pass\n        else:\n"),
    "comment_on_else": ("        else:\n", "        else:  # mine\n"),
    "no_else": ("        else:\n            out = self.run(x)  # trailing\n", ""),
    "digest": ("# glm-pto: gate 1 ", "# glm-pto: gate 2 "),
    "marker_moved": ("(self, x):  # glm-pto", "(self, x):\n            pass  # glm-pto"),
    "other_site": ("# glm-pto: gate", "# glm-pto: attention_pre"),
    "condition_on_many_lines": (" and glm_pto_kernels.gate_supported(self, x):", " and (\n            x):"),
    "comment_in_the_branch": ("gate(self, x)\n", "gate(self, x)  # mine\n"),
    "comment_line_in_the_branch": (
        "            out = glm_pto",
        "            # mine\n            out = glm_pto",
    ),
    "else_on_one_line": ("        else:\n            out = self.run(x)", "        else: out = self.run(x)"),
}


@pytest.mark.parametrize(("old", "new"), EDITS.values(), ids=EDITS.keys())
def test_an_edit_inside_our_lines_is_seen_and_nothing_is_thrown_away(old, new):
    after = wrap(BEFORE.encode()).decode()
    assert after.count(old) == 1
    mine = after.replace(old, new)
    found = guard.find(source.read("module.py", mine.encode()))
    assert [bool(g.fault) for g in found] == [True]
    assert strip(mine.encode()) == mine.encode()


@pytest.mark.parametrize("edit_", ["elif", "no_else", "else_on_one_line", "marker_moved"])
def test_force_never_takes_out_what_has_no_plain_else(edit_):
    mine = wrap(BEFORE.encode()).decode().replace(*EDITS[edit_]).encode()
    assert edit.strip(source.read("module.py", mine), force=True).data == mine


LAYOUTS = {
    "black": (
        "if glm_pto_kernels.USE_PTO_GATE and glm_pto_kernels.gate_supported(self, x):  #",
        "if (\n            glm_pto_kernels.USE_PTO_GATE\n            and glm_pto_kernels.gate_supported(\n"
        "                self,\n                x,\n            )\n        ):  #",
    ),
    "yapf": ("_supported(self, x):  #", "_supported(\n                self, x):  #"),
    "branch": (
        "glm_pto_kernels.gate(self, x)\n",
        "(\n                glm_pto_kernels.gate(self, x)\n            )\n",
    ),
}


@pytest.mark.parametrize(("old", "new"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_formatter_changes_nothing_of_ours(old, new):
    after = wrap(BEFORE.encode()).decode()
    assert after.count(old) == 1
    formatted = after.replace(old, new).encode()
    (found,) = guard.find(source.read("module.py", formatted))
    assert found.fault == ""
    assert guard.as_written(found, *edit.texts(FORM, {"x": "x"}))
    assert locate.matches(source.read("module.py", formatted), FORM) == []
    assert strip(formatted) == BEFORE.encode()


def test_else_if_that_became_elif_is_taken_out_too():
    before = body("        if x:\n            out = 1\n        else:\n            out = self.run(x)\n")
    after = wrap(before.encode()).decode()
    head, _, tail = after.partition("        else:\n            if glm")
    first, *deeper = tail.splitlines(keepends=True)
    collapsed = f"{head}        elif glm{first}" + "".join(line.removeprefix("    ") for line in deeper)
    (found,) = guard.find(source.read("module.py", collapsed.encode()))
    assert found.fault == ""
    assert strip(collapsed.encode()).decode() == before


HEADS = {
    "after_all_imports": ("import a\nimport b\nx = 1\n", 2, 2),
    "before_the_import_that_is_the_site": ("import a\nimport b\nimport c\n", 1, 1),
    "before_the_first_import_that_is_the_site": ("import a\nimport b\n", 0, 0),
    "after_the_docstring": ('"""Doc."""\nimport a\n', 1, 1),
    "after_future_imports": ('"""Doc."""\nfrom __future__ import a\nimport b\n', 2, 2),
    "no_further_than_the_first_run": ("import a\nx = 1\nimport b\ny = 2\n", 3, 1),
    "no_imports": ("x = 1\ny = 2\n", 1, 0),
}


@pytest.mark.parametrize(("text", "site", "at"), HEADS.values(), ids=HEADS)
def test_our_import_stands_before_the_site(text, site, at):
    assert imports.position(source.read("m", text.encode()), site) == at


def test_the_digest_of_this_version_never_changes():
    """Guards that stand in installed trees carry it: another one would have them all taken for edited."""
    lines = guard.render(
        "gate", "  ", " ", "K.A and K.f(self, y=1)", "x, y = K.f(x, *z, k='t')\nreturn x[0].y", "\r\n"
    )
    assert lines == [
        "  if K.A and K.f(self, y=1):  # glm-pto: gate 1 c86da4b1\r\n",
        "   x, y = K.f(x, *z, k='t')\r\n",
        "   return x[0].y\r\n",
        "  else:\r\n",
    ]


def test_a_marker_inside_a_string_is_no_guard():
    text = 'text = """\nif x:  # glm-pto: gate 1 01234567\n"""\n'
    assert guard.find(source.read("m", text.encode())) == []


def test_a_commented_out_guard_is_no_guard():
    before = BEFORE.replace(
        "        return out\n", "        # if x:  # glm-pto: gate 1 01234567\n        return out\n"
    )
    assert guard.find(source.read("m", before.encode())) == []
    assert strip(wrap(before.encode())).decode() == before


@pytest.mark.parametrize("below", ["", "\n\nlast = 1\n"])
def test_our_import_is_found_again_below_the_guard(below):
    after = wrap(BEFORE.encode()).decode()
    moved = after.replace(imports.IMPORT + "\n", "") + imports.IMPORT + "\n" + below
    assert strip(moved.encode()).decode() == BEFORE + below


def test_two_sites_in_any_order_give_the_same_bytes():
    other = Form("r", "module.py", "Layer.forward", "before = 1", "K.B", "before = K.c()", "all")
    file = source.read("module.py", BEFORE.encode())
    pairs = {"gate": FORM, "shared_expert": other}

    def add(current: source.Source, site: str) -> source.Source:
        (match,) = locate.matches(current, pairs[site])
        return edit.apply(current, [(site, match)])

    one = add(add(file, "gate"), "shared_expert")
    assert one.data == add(add(file, "shared_expert"), "gate").data
    assert edit.strip(one, {"gate"}).data == add(file, "shared_expert").data
    assert edit.strip(edit.strip(one, {"shared_expert"}), {"gate"}).data == file.data


STRAY = {
    "on_a_decorator": "@wraps{mark}\ndef f():\n    pass\n",
    "on_an_else": "if x:\n    y = 1\nelse:{mark}\n    y = 2\n",
    "before_a_string": "x = f(1,{mark}\n      '''two\nlines''')\n",
    "after_a_string": "x = f('''two\nlines''',{mark}\n      1)\n",
    "on_a_case": "match x:\n    case 1:{mark}\n        pass\n",
}


@pytest.mark.parametrize("text", STRAY.values(), ids=STRAY)
def test_a_marker_on_anything_but_our_if_is_a_fault(text):
    """A guard of ours was taken apart there: `revert` must not say that nothing is left."""
    (found,) = guard.find(source.read("m", text.format(mark="  # glm-pto: gate 1 0123abcd").encode()))
    assert (found.site, found.orelse) == ("gate", ())
    assert "no longer stands on the `if`" in found.fault
