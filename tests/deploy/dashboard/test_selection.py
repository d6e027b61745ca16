"""Parameters of a page's URL: valid ones reach the queries, others are errors that say what is possible."""

import re

import pytest

from headrace.deploy.dashboard.pages import PAGES
from headrace.deploy.dashboard.selection import (
    COMPARED,
    EXPLORED,
    MAX_SHOWN,
    MAX_TEXT,
    SLICED,
    SelectionError,
    selection,
)
from headrace.streams.clickhouse.slices import LENGTHS


def test_every_parameter_has_a_value_and_others_are_ignored() -> None:
    chosen = selection(SLICED, {"run": "r1", "source": "wide", "smooth": "5"})
    assert chosen["run"] == "r1"
    assert chosen["source"] == "wide"
    assert set(chosen) == {parameter.name for parameter in SLICED}
    assert chosen["by"] == ""


def test_a_default_holds_for_an_empty_value_too() -> None:
    assert selection(EXPLORED, {"limit": ""})["limit"] == "200"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"by": "colour"}, "by is 'colour', but must be one of agent, source"),
        ({"run": "x" * (MAX_TEXT + 1)}, f"run may have at most {MAX_TEXT} characters"),
    ],
)
def test_an_impossible_slice_is_an_error(given: dict[str, str], said: str) -> None:
    with pytest.raises(SelectionError, match=re.escape(said)):
        selection(SLICED, given)


@pytest.mark.parametrize("name", ["length", "a_length", "b_length"])
def test_a_length_is_a_slice_that_the_page_offers_or_an_error_that_names_them(name: str) -> None:
    for page in (COMPARED, SLICED, EXPLORED) if name == "length" else (COMPARED,):
        assert [selection(page, {name: each})[name] for each in ("", *LENGTHS)] == ["", *LENGTHS]
        with pytest.raises(SelectionError, match=f"{name} is 'nonsense', but must be one of under 64, 64 to 255, "):
            selection(page, {name: "nonsense"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"limit": str(MAX_SHOWN + 1)}, f"may be at most {MAX_SHOWN}"),
        ({"limit": "-1"}, "must be a number"),
        ({"from": "v3"}, "from is 'v3', but must be a number (oldest policy version)"),
        ({"least": "nan"}, "must be a number"),
        ({"from": "٣"}, "must be a number"),  # ClickHouse would read 0
        ({"limit": "١٢"}, "must be a number"),
        ({"to": "3\n"}, "must be a number"),
        ({"sort": "payload"}, "must be one of time, reward"),
    ],
)
def test_an_impossible_filter_is_an_error(given: dict[str, str], said: str) -> None:
    with pytest.raises(SelectionError, match=re.escape(said)):
        selection(EXPLORED, given)


def test_every_parameter_of_a_query_is_one_of_its_page() -> None:
    for page in PAGES:
        known = {parameter.name for parameter in page.parameters} | {"run"}
        listing, *others = page.panels
        assert "{" not in listing.sql, page.path
        for panel in others:
            assert set(re.findall(r"\{(\w+):\w+\}", panel.sql)) <= known, panel.name


def test_a_panel_that_is_cut_or_split_uses_the_parameters_it_names() -> None:
    for page in PAGES:
        for panel in page.panels:
            used = set(re.findall(r"\{(\w+):\w+\}", panel.sql))
            assert set(panel.cuts) <= used, panel.name
            assert panel.splits <= ("by" in used), panel.name
