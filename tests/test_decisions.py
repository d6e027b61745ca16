"""DECISIONS.md: its table of contents is complete, its entries are dated, and the files that it names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "DECISIONS.md").read_text()
FOLDERS = ("schemas", "agents", "streams", "trainer", "deploy", "tests", "src")


def paths_in(text: str) -> list[str]:
    """Paths in backticks that start with a top-level folder."""
    quoted = re.findall(r"`([\w./-]+)`", text)
    return [path for path in quoted if "/" in path and path.split("/")[0] in FOLDERS]


def test_every_file_that_an_entry_names_exists() -> None:
    assert len(paths_in(PAGE)) > 20
    missing = [path for path in paths_in(PAGE) if not (ROOT / path).exists()]
    assert not missing


def test_a_missing_file_is_found() -> None:
    assert paths_in("`streams/none.py`, `trainer/`, `RUN/VERSION`, `trainer`") == ["streams/none.py", "trainer/"]


def test_the_table_of_contents_lists_every_part() -> None:
    parts = re.findall(r"^## (.+)$", PAGE, re.M)
    anchors = [re.sub(r"[^\w\- ]", "", part.lower()).replace(" ", "-") for part in parts]
    listed = re.findall(r"^- \[(.+)\]\(#(.+)\)$", PAGE, re.M)
    assert listed == list(zip(parts, anchors, strict=True))


def test_every_title_is_unique_and_ends_with_its_date() -> None:
    titles = re.findall(r"^### (.+)$", PAGE, re.M)
    assert len(set(titles)) == len(titles)
    assert [title for title in titles if not re.search(r"\(2\d{3}-\d\d-\d\d(?:, [^()]+)?\)$", title)] == []
