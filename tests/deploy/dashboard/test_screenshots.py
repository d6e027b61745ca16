"""The photographs leave out no page."""

from headrace.deploy.dashboard.pages import PAGES
from headrace.deploy.dashboard.sharing import PREFIX, SHARED_PANELS
from tests.deploy.dashboard.screenshots import GUIDE, RECORDS, VIEWS


def test_every_page_is_photographed() -> None:
    paths = {path.partition("?")[0] for path, _ in (VIEWS | RECORDS | GUIDE).values()}
    assert {page.path or "/" for page in PAGES} <= paths
    shared = {path.removeprefix(PREFIX + "{token}").rstrip("/") for path in paths if path.startswith(PREFIX)}
    assert shared == set(SHARED_PANELS)
    assert {path.split("/")[1] for path in paths} >= {"trajectory", "group", "version"}
    assert [ready for _, ready in GUIDE.values()] == ["#guide .way"]
