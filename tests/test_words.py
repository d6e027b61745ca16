"""Retired words stay out of the prose: docstrings, comments, messages and Markdown. One name for one thing."""

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RETIRED = {
    r"log time": "stream time",
    r"to the bit": "bit-identical",
    r"for want of": "because … is missing",
    r"(?:made|make|makes|making) anew": "recreate, repeat",
    r"(?:set|sets|setting) aside": "quarantine, or what exactly happens",
    r"(?:turned|turns|turn) away": "reject (a trajectory), refuse (a request)",
    r"(?:ride|rides|rode|ridden|riding) out": "retry",
    r"(?:stepped|passed) over": "skipped",
    r"(?:held|holds|hold) up(?! to)": "block, delay",
    r"letter box(?:es)?": "dead-letter queue",
    r"under way": "in progress, open, in flight",
    r"in hand": "current, in flight",
    r"at hand": "available, current",
    r"out of reach": "unavailable",
    r"whoever": "the process, person or client that is meant",
    r"worked over": "recomputed, replayed",
    r"(?:go|goes|going|went) by": "use, follow",
    r"(?:go|goes|going|went) on(?! to\b)": "continue, resume, happen",
    r"told of": "reported to, know",
    r"(?:speak|speaks|spoke|spoken) of": "name, describe",
    r"there where": "where",
    r"as long as may be": "as long as possible",
    r"wont to": "usually",
    r"pip install '?headrace\[.*": "pip install 'PATH[extra]': no package index has headrace",
}
"""Regular expression → what to write instead. Only what is wrong wherever it stands: this test has no exceptions."""

PATTERNS = {
    re.compile(r"\b(?:" + phrase.replace(" ", r"\s+") + r")\b", re.I): instead for phrase, instead in RETIRED.items()
}
ANY = re.compile("|".join(f"(?:{pattern.pattern})" for pattern in PATTERNS), re.I)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"", re.S)
"""Comments and strings of C++ and JavaScript."""


def prose_of(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Pieces of prose in a file with the line on which each begins: strings and comments, of Markdown everything."""
    if name.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if tokenize.tok_name[token.type] in ("STRING", "FSTRING_MIDDLE", "COMMENT"):
                yield token.start[0], token.string
    elif name.endswith((".cpp", ".hpp", ".js")):
        for match in COMMENT.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, match[0]
    else:
        yield 1, text


def findings(name: str, text: str) -> Iterator[str]:
    """Every retired word in a file: where it is, and what to write instead."""
    if not ANY.search(text):  # most files: tokens take their time
        return
    for first, piece in prose_of(name, text):
        for pattern, instead in PATTERNS.items():
            for match in pattern.finditer(piece):
                line = first + piece.count("\n", 0, match.start())
                yield f"{name}:{line}: {' '.join(match[0].split())!r}: write {instead}"


def test_no_retired_word_is_used() -> None:
    kinds = ("*.py", "*.md", "*.cpp", "*.hpp", "*.js", "*.html", "*.toml", "*.txt", "Makefile", ".ci/*")
    listed = subprocess.run(["git", "ls-files", "-z", *kinds], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if name and ROOT / name != Path(__file__)]
    assert len(names) > 500
    found = [line for name in names if (ROOT / name).exists() for line in findings(name, (ROOT / name).read_text())]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.py", '"""A docstring.\n\nA letter\nbox."""\n', 3),
        ("a.py", "x = 1  # the letter box\n", 1),
        ("a.py", 'x = f"the letter box {x}"\n', 1),
        ("a.cpp", "int x;\n// letter box\n", 2),
        ("a.md", "# Title\n\nLetter box first.\n", 3),
    ],
)
def test_a_retired_word_is_found(name: str, text: str, line: int) -> None:
    assert [found.partition(": ")[0] for found in findings(name, text)] == [f"{name}:{line}"]


def test_identifiers_and_longer_words_are_not_prose() -> None:
    assert not list(findings("a.py", "letter_box = ride_out\n"))
    assert not list(findings("a.md", "A letter boxer."))


def test_the_glossary_has_at_most_forty_terms_in_one_table() -> None:
    glossary = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Glossary\n")[2].partition("\n## ")[0]
    terms = [line.split("|")[1].strip() for line in glossary.splitlines() if line.startswith("| ")][1:]
    assert 20 < len(terms) <= 40
    assert len(terms) == len(set(terms))
