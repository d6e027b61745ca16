"""Photographs the dashboard's pages with a run whose rows are made by the fold, dark and light, wide and narrow.

    python -m tests.deploy.dashboard.screenshots OUT [--clickhouse URL] [--run RUN]

Without --clickhouse an engine of its own is photographed while it is empty, which shows the guide of the first run, and
then filled with the run of ``folded``, the seeded one, the one of ``hacked_run``, whose alerts, attempts and texts are
photographed, too, and the fleet of ``faulty_fleet``.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from headrace.deploy.dashboard.sharing import Share, key_file, make_key, sign
from headrace.streams.clickhouse.database import open_client
from headrace.streams.clickhouse.schema import ensure_tables
from tests.benchmarks.bench_sink import clickhouse
from tests.deploy.dashboard.faulty_fleet import fill_fleet
from tests.deploy.dashboard.folded import fill_cut_run
from tests.deploy.dashboard.hacked_run import RUN, store_run
from tests.deploy.dashboard.seed import seed_run
from tests.deploy.dashboard.served import served
from tests.deploy.dashboard.test_pages import browser_page

SIZES = ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark"))
VIEWS = {
    "overview": ("/?run={run}", "#reward canvas"),
    "overview-by-source": ("/?run=cut&by=source&smooth=5", "#reward canvas"),
    "trainer": ("/trainer?run={run}", "#reward canvas"),
    "compare": ("/compare?run={run}", "#rewards tbody tr"),
    "compare-slices": ("/compare?a_run=cut&b_run=cut&a_source=wide&b_source=deep&tool=read", "#rewards tbody tr"),
    "explore": ("/explore?run={run}", "#trajectories tbody tr"),
    "fleet": ("/fleet", "#topics tbody tr"),
    "shared": ("/shared/{token}/", "#reward canvas"),
    "shared-trainer": ("/shared/{token}/trainer", "#reward canvas"),
    "mistyped": ("/?run=risng", "#problem:not([hidden])"),
}
GUIDE = {"guide": ("/", "#guide .way")}
"""The page while there is no data."""
RECORDS = {
    "watch": ("/watch?run=", "article.alert"),
    "trajectory": ("/trajectory/v1-tickets-1-0", "#pieces .sampled"),
    "trajectory-with-subagent": ("/trajectory/parent", "#pieces .sampled"),
    "group": ("/group/g-1-1", "table.beside"),
    "version": (f"/version/1?run={RUN}", "#sampled table"),
}
"""Pages about records of the planted run."""


def photograph(url: str, out: Path, run: str, views: Mapping[str, tuple[str, str]] = VIEWS, token: str = "") -> None:
    """Write a picture of each view in each size to ``out``. ``token``: that of a link to ``run``. Raises
    ``RuntimeError`` if a page is wider than its screen or complains."""
    out.mkdir(parents=True, exist_ok=True)
    for width, scheme in SIZES:
        with browser_page(width, scheme) as (page, complaints):
            for name, (path, ready) in views.items():
                page.goto(url + path.format(run=run, token=token))
                page.locator(ready).first.wait_for()
                page.wait_for_timeout(300)
                page.screenshot(path=out / f"{name}-{width}-{scheme}.png", full_page=True)
                across = page.evaluate("document.documentElement.scrollWidth")
                if across > width or complaints:
                    raise RuntimeError(f"{name} at {width} {scheme}: {across} pixels wide, {complaints}")


def main() -> None:
    """Fill, serve, photograph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--clickhouse")
    parser.add_argument("--run", default="rising")
    options = parser.parse_args()
    views, objects = VIEWS, None
    with tempfile.TemporaryDirectory() as folder, clickhouse(options.clickhouse) as (url, _):
        key = key_file(Path(folder))
        token = sign(Share(options.run, int(time.time()) + 86_400), make_key(key))
        if options.clickhouse is None:
            client = open_client(url)
            ensure_tables(client)
            with served(url, kafka="127.0.0.1:9092", gateway="http://127.0.0.1:8200") as address:
                photograph(address, options.out, options.run, GUIDE)
            fill_cut_run(client)
            seed_run(client, "rising", versions=40)
            fill_fleet(client)
            views, objects = VIEWS | RECORDS, store_run(client)
            client.close()
        with served(url, objects=objects, share_key=key) as address:
            photograph(address, options.out, options.run, views, token)


if __name__ == "__main__":
    main()
