"""The dashboard's pages: their paths, files and panels."""

from dataclasses import dataclass

from headrace.deploy.dashboard.compare_panels import COMPARE_PANELS
from headrace.deploy.dashboard.explore_panels import EXPLORE_PANELS
from headrace.deploy.dashboard.fleet_panels import FLEET_PANELS
from headrace.deploy.dashboard.overview_panels import PANELS
from headrace.deploy.dashboard.panel import Panel
from headrace.deploy.dashboard.selection import COMPARED, EXPLORED, RUN, SLICED, Parameter
from headrace.deploy.dashboard.trainer_panels import TRAINER_PANELS
from headrace.deploy.dashboard.watch_panels import WATCH_PANELS


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
    parameters: tuple[Parameter, ...] = (RUN,)
    """The parameters of its URL."""


PAGES: tuple[Page, ...] = (
    Page("", "index.html", PANELS, parameters=SLICED),
    Page("/trainer", "trainer.html", TRAINER_PANELS, one_run=True),
    Page("/compare", "compare.html", COMPARE_PANELS, parameters=COMPARED),
    Page("/fleet", "fleet.html", FLEET_PANELS),
    Page("/explore", "explore.html", EXPLORE_PANELS, parameters=EXPLORED),
    Page("/watch", "watch.html", WATCH_PANELS),
)
