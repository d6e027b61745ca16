"""Whether a run exists: a mistyped name is an error and not an empty page."""

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.deploy.dashboard.panel import Form, Panel, read_panel

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

MAX_NAMES = 10_000
"""Most runs among which the nearest names are searched."""

_TABLES = ("trajectories", "rewards", "rejected", "training", "steps", "weights", "budget", "applied", "alerts")

KNOWN = Panel(
    "known",
    "1 if any record names the run.",
    "SELECT "
    + " OR ".join(
        f"(SELECT count() FROM (SELECT 1 FROM {table} WHERE {column} = {{run:String}} LIMIT 1)) > 0"
        for table, column in (*((table, "run") for table in _TABLES), ("events", "started_run"))
    )
    + " AS known",
    form=Form.DATA,
)
"""Looks for the run in every table that names one."""

NAMES = Panel(
    "names",
    "The names of runs, the most recent first.",
    f"""
    SELECT run FROM (
        SELECT started_run AS run, max(time) AS last FROM events WHERE started_run != '' GROUP BY run
        UNION ALL SELECT run, max(time) AS last FROM steps WHERE run != '' GROUP BY run
        UNION ALL SELECT run, max(time) AS last FROM rewards WHERE run != '' GROUP BY run
    ) GROUP BY run ORDER BY max(last) DESC, run LIMIT {MAX_NAMES}
    """,
    form=Form.DATA,
)
"""Lists the runs for a message."""


def runs_besides(client: "Client", run: str) -> Sequence[str] | None:
    """Returns the names of the runs in ClickHouse, the newest first, if ``run`` is none of them; else ``None``. Raises
    the client's ``ClickHouseError``.
    """
    if read_panel(client, KNOWN, {"run": run})["known"][0]:
        return None
    return read_panel(client, NAMES, {})["run"]


def unknown_run(run: str, names: Sequence[str], *, remedy: str = " Choose one above.") -> str:
    """Returns the message that there is no run ``run``, with the nearest of ``names``, which are the newest first.
    ``remedy``: what to do if none is near.
    """
    if not names:
        return f"There is no run {run!r}, and no other yet: headrace demo starts one."
    near = difflib.get_close_matches(run, names, n=3, cutoff=0.6)
    if near:
        return f"There is no run {run!r}. Is it {' or '.join(repr(name) for name in near)}?"
    newest = ", ".join(repr(name) for name in names[:5])
    return f"There is no run {run!r}. The newest of {len(names)}: {newest}.{remedy}"
