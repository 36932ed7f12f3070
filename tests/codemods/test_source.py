"""Reading a file: exact bytes, or a refusal that names the file."""

from __future__ import annotations

import warnings

import pytest

from glm_pto.codemods import source

EXACT = {
    "lf": b"a = 1\nb = 2\n",
    "crlf": b"a = 1\r\nb = 2\r\n",
    "cr": b"a = 1\rb = 2\r",
    "mixed": b"a = 1\r\nb = 2\nc = 3\rd = 4",
    "empty": b"",
    "byte_order_mark": b"\xef\xbb\xbfa = 1\n",
    "latin_1": "# coding: latin-1\na = 'é'\n".encode("latin-1"),
    "gbk": "# coding: gbk\na = '中'\n".encode("gbk"),
    "separators_that_are_no_line_ends": "a = '\u2028\x0b\x0c\x1c\x85'\nb = 2\n".encode(),
    "form_feed_line": b"a = 1\n\x0c\nb = 2\n",
}


@pytest.mark.parametrize("data", EXACT.values(), ids=EXACT.keys())
def test_gives_the_bytes_back(data):
    file = source.read("m.py", data)
    assert file.encode(list(file.lines)) == data
    for node in file.tree.body:
        assert file.lines[node.lineno - 1].encode(file.codec)[node.col_offset :].strip()


def test_lines_are_pythons_lines():
    file = source.read("m.py", "a = '\u2028'\r\nb = 2\rc = 3\n".encode())
    assert [n.lineno for n in file.tree.body] == [1, 2, 3]
    assert [line[0] for line in file.lines] == ["a", "b", "c"]


REFUSED = {
    "nul_bytes": (b"a = 1\0\n", "NUL"),
    "unknown_cookie": (b"# coding: klingon\na = 1\n", "unknown encoding"),
    "cookie_against_the_mark": (b"\xef\xbb\xbf# coding: latin-1\na = 1\n", "encoding problem"),
    "undecodable": (b"a = '\xff'\n", "invalid|cannot be decoded"),
    "codec_that_does_not_give_the_bytes_back": (b"# coding: utf-7\na = '+AGE-'\n", "same bytes"),
    "syntax_error": (b"def f(:\n", "m.py:1: this Python cannot parse"),
    "python_2": (b"print 'a'\n", "this Python cannot parse"),
    "too_large": (b"#" * (source.MAX_BYTES + 1), "larger than any file"),
    "too_deep": (b"a = " + b"(" * 5000 + b")" * 5000 + b"\n", "parse"),
    "very_long_sum": (b"a = " + b"-" * 200_000 + b"1\n", "parse|nested"),
}


@pytest.mark.parametrize(("data", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_by_name(data, why):
    with pytest.raises(source.Unreadable, match=why) as caught:
        source.read("m.py", data)
    assert str(caught.value).startswith("m.py")


def test_prints_no_warning_of_the_target():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source.read("m.py", b"a = '\\d'\nb = 1 is 1\n")
