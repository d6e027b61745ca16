"""The navigation that all pages have."""

import re

import pytest

from headrace.deploy.dashboard.page_html import NAVIGATION, STATIC, page_html
from headrace.deploy.dashboard.pages import PAGES

FILES = sorted(file.name for file in STATIC.glob("*.html"))


def test_the_navigation_has_every_page_with_panels() -> None:
    assert set(NAVIGATION) == {page.path or "/" for page in PAGES}


@pytest.mark.parametrize("file", FILES)
def test_every_file_gets_the_same_links(file: str) -> None:
    links = re.findall(r'<nav aria-label="Pages">(.*?)</nav>', page_html(file))
    assert [re.findall(r'<a href="([^"]+)">([^<]+)</a>', each) for each in links] == [list(NAVIGATION.items())]


def test_only_the_current_page_is_marked() -> None:
    assert re.findall(r'<a href="([^"]+)" aria-current="page">', page_html("watch.html", "/watch")) == ["/watch"]
    assert "aria-current" not in page_html("group.html")
