"""The dashboard's pages: where each stands, and what it shows."""

from dataclasses import dataclass

from headrace.deploy.dashboard.overview_panels import PANELS
from headrace.deploy.dashboard.panel import Panel
from headrace.deploy.dashboard.trainer_panels import TRAINER_PANELS


@dataclass(frozen=True, slots=True)
class Page:
    """A page. The first of its panels lists the runs that it can show."""

    path: str
    """Where it stands; its figures stand below: ``{path}/api/snapshot``."""
    file: str
    """Its HTML."""
    panels: tuple[Panel, ...]
    """What it shows."""
    one_run: bool = False
    """Whether it shows one run at a time: for all of them it takes the one that moved last."""


PAGES: tuple[Page, ...] = (
    Page("", "index.html", PANELS),
    Page("/trainer", "trainer.html", TRAINER_PANELS, one_run=True),
)
