"""The tables of the three reports' mechanisms: rows have a file, a command and a figure; all of them can be found."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from headrace.deploy.cli import cli

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "agents" / "SYSTEMS.md"
NOT_BUILT = "not built"
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)[^)]*\)")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
FEWEST_ROWS = {"What they share": 8, "Agent Swarm (Kimi K2.5)": 10, "Composer 2 and 2.5 (Cursor)": 14,
               "Context-1 (Chroma)": 9}  # fmt: skip


class Row(NamedTuple):
    """A row of a table."""

    section: str
    mechanism: str
    file: str
    command: str
    figure: str


def rows() -> list[Row]:
    found, section = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith("| mechanism "):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 4, line
            found.append(Row(section, *cells))
    return found


ROWS = rows()


def problem_of(command: str) -> str | None:
    """Why a command does not parse; ``None`` if it does."""
    match shlex.split(command):
        case ["pytest", *paths]:
            missing = [path for path in paths if not (ROOT / path).exists()]
            return f"there is no {missing[0]}" if missing else None
        case ["python", "-m", module, *_]:
            return None if find_spec(module) else f"there is no module {module}"
        case ["headrace", *words]:
            return _problem_of_words(words)
        case _:
            return "neither pytest, python -m nor headrace"


def _problem_of_words(words: list[str]) -> str | None:
    found: click.Command = cli
    while isinstance(found, click.Group) and words:
        following = found.get_command(click.Context(found), words[0])
        if following is None:
            return f"there is no command {words[0]}"
        found, words = following, words[1:]
    known = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in words if word.startswith("-") and word not in known]
    if unknown:
        return f"there is no option {unknown[0]}"
    files = [word for word in words if word.startswith("deploy/") and not (ROOT / word).is_file()]
    return f"there is no {files[0]}" if files else None


def test_each_report_has_its_mechanisms() -> None:
    sections = [row.section for row in ROWS]
    assert {name: sections.count(name) >= least for name, least in FEWEST_ROWS.items()} == dict.fromkeys(
        FEWEST_ROWS, True
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mechanism[:50])
def test_a_row_has_files_that_exist_a_command_that_parses_and_a_figure_or_says_not_shown(row: Row) -> None:
    links = re.findall(r"\]\(([^)#]+)", row.file)
    if row.file == NOT_BUILT:
        assert (row.command, row.figure) == ("", "not shown")
        return
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
    commands = re.findall(r"`([^`]+)`", row.command)
    assert len(commands) == 1
    assert problem_of(commands[0]) is None
    assert row.figure


def absent_figures(row: Row, pages: Path) -> list[str]:
    """The numbers of a row's figure, as written, that are on none of the pages that it links to. Without a page only
    whole numbers may stand there: counts and constants, which the row's command asserts."""
    texts = [(pages / link).read_text() for link in LINK.findall(row.figure) if link.endswith(".md")]
    found = {number for text in texts for number in NUMBER.findall(text)}
    said = NUMBER.findall(LINK.sub(" ", row.figure))
    return [number for number in said if number not in found and (texts or "." in number)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mechanism[:50])
def test_each_number_of_a_figure_is_on_a_page_that_it_links_to(row: Row) -> None:
    assert absent_figures(row, PAGE.parent) == []


@pytest.mark.parametrize(
    ("figure", "absent"),
    [
        ("0.646 in 15,602 calls ([page](page.md#a-part-7))", []),
        ("0.65 ([page](page.md))", ["0.65"]),
        ("15,60 ([page](page.md))", ["15,60"]),
        ("0.646 by hand", ["0.646"]),
        ("scripted models earn 1 and 0", []),
        ("[page 8](page.md); not shown", []),
    ],
)
def test_a_number_that_is_not_on_the_page_is_noticed(tmp_path: Path, figure: str, absent: list[str]) -> None:
    (tmp_path / "page.md").write_text("| seed 1 | 0.258 → 0.646 | 15,602 |\n")
    assert absent_figures(Row("", "", "", "", figure), tmp_path) == absent


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("pytest tests/nowhere.py", "there is no tests/nowhere.py"),
        ("python -m tests.nowhere", "there is no module tests.nowhere"),
        ("headrace nowhere", "there is no command nowhere"),
        ("headrace demo --nowhere", "there is no option --nowhere"),
        ("headrace train --config deploy/training/nowhere.toml", "there is no deploy/training/nowhere.toml"),
        ("make test", "neither pytest, python -m nor headrace"),
    ],
)
def test_a_command_that_does_not_parse_is_noticed(command: str, said: str) -> None:
    assert problem_of(command) == said
