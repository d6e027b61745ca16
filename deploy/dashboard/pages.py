"""The dashboard's pages: their paths, files and panels."""

from dataclasses import dataclass

from headrace.deploy.dashboard.overview_panels import PANELS
from headrace.deploy.dashboard.panel import Panel
from headrace.deploy.dashboard.trainer_panels import TRAINER_PANELS


@dataclass(frozen=True, slots=True)
class Page:
    """A page. Its first panel lists the runs that it can show."""

    path: str
    """The path of its URL; its data is below: ``{path}/api/snapshot``."""
    file: str
    """Its HTML file."""
    panels: tuple[Panel, ...]
    """Its panels."""
    one_run: bool = False
    """Whether it shows a single run: without a selected run it shows the most recently active one."""


PAGES: tuple[Page, ...] = (
    Page("", "index.html", PANELS),
    Page("/trainer", "trainer.html", TRAINER_PANELS, one_run=True),
)
