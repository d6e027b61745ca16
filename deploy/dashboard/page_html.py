"""The HTML of the dashboard's pages: their files in ``static``, with the navigation that all have.

page_html("trainer.html", "/trainer")  →  … <nav aria-label="Pages"><a href="/">Overview</a> …
"""

from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"

NAVIGATION = {
    "/": "Overview",
    "/trainer": "Trainer",
    "/compare": "Compare",
    "/explore": "Explore",
    "/watch": "Watch",
    "/fleet": "Fleet",
}
"""Path of each page of the navigation, in order, and its name there."""

_PLACE = "<!-- navigation -->"
_CURRENT = ' aria-current="page"'


@cache
def page_html(file: str, path: str = "") -> str:
    """Returns the page ``file`` of ``static``; the link to ``path`` is marked as the current page."""
    links = " ".join(
        f'<a href="{each}"{_CURRENT if each == path else ""}>{name}</a>' for each, name in NAVIGATION.items()
    )
    before, after = (STATIC / file).read_text().split(_PLACE)
    return f'{before}<nav aria-label="Pages">{links}</nav>{after}'
