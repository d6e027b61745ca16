"""Reads a panel of a page, with the page's parameters, as rows."""

from typing import TYPE_CHECKING, Any

from headrace.deploy.dashboard.pages import PAGES
from headrace.deploy.dashboard.panel import read_panel
from headrace.deploy.dashboard.selection import selection

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

BY_PATH = {page.path: page for page in PAGES}
"""The pages by their paths."""


def panel_rows(client: "Client", name: str, path: str = "", **chosen: str) -> list[dict[str, Any]]:
    """Returns the rows of the panel ``name`` of the page ``path``."""
    page = BY_PATH[path]
    (panel,) = (panel for panel in page.panels if panel.name == name)
    columns = read_panel(client, panel, selection(page.parameters, chosen))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
