"""The sums by slice that are kept are those of the rewards, whenever rewards come, how often and in what order."""

import random
from collections.abc import Iterator, Sequence
from math import isclose
from time import time
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace.deploy.dashboard.pages import PAGES
from headrace.deploy.dashboard.selection import selection
from headrace.deploy.dashboard.slice_panels import SUMS_OF_RUN
from headrace.streams.clickhouse.columns import Row, Table, arrow_table
from headrace.streams.clickhouse.computed_tables import versions_of
from headrace.streams.clickhouse.database import insert, open_client
from headrace.streams.clickhouse.schema import compute_missing, ensure_tables
from headrace.streams.clickhouse.slice_sums import recompute
from headrace.streams.clickhouse.slices import SUMS
from headrace.streams.clickhouse.tables import REWARDS, TRAJECTORIES

pytestmark = pytest.mark.clickhouse

RUN = "a 'run' \\ of ours"
VERSIONS = 12
NOW_MS = int(time() * 1000)


def written(rng: random.Random) -> list[tuple[Table, Row]]:
    """Rows of one run in a random order: groups over up to four versions, rollouts without a group or a version,
    evaluations, frozen ones, revisions of rewards, records that were written twice.
    """
    rows: list[tuple[Table, Row]] = []
    for number in range(150):
        group = rng.choice((f"g{number}", f"g{number}", ""))
        version, size = rng.randrange(VERSIONS), rng.choice((1, 4, 4))
        for member in range(size):
            name = f"t{number}-{member}"
            both = {
                "logged_at": NOW_MS, "offset": len(rows), "trajectory_id": name, "run": RUN, "group_id": group,
                "task_id": f"task{number % 20}", "purpose": rng.choice(("train", "train", "train", "evaluate")),
                "role": rng.choice(("trainable", "trainable", "trainable", "frozen")), "agent": rng.choice("ab"),
                "tenant": rng.choice(("", "x")),
                "oldest_version": rng.choice((None, *[min(version + late, VERSIONS) for late in (0, 0, 0, 1, 3)])),
            }  # fmt: skip
            tools = rng.sample(["grep", "read", "search"], rng.randrange(4))
            task = {"task": rng.choice(("{}", '{"channel": "web"}', '{"channel": "slack", "target": 1}'))}
            labels = {"task_source": rng.choice(("", "wide", "deep")), "tools": [(tool, 1) for tool in tools], **task}
            sampled = {"sampled_tokens": rng.choice((10, 100, 1000))}
            rows.append((TRAJECTORIES, {**both, "id_sent": name, **labels, **sampled}))
            for revision in range(rng.choice((1, 1, 1, 2))):
                value = rng.choice((None, *[rng.random()] * 9))
                score = {"spec": "s@1", "revision": revision, "normalised": value}
                rows.append((REWARDS, {**both, "id_sent": f"{name}-{revision}", "offset": len(rows), **score}))
    rows += rng.sample(rows, 30)
    rng.shuffle(rows)
    return rows


@pytest.fixture
def client(clickhouse: str) -> Iterator[Client]:
    client = open_client(clickhouse)
    ensure_tables(client)
    for table in ("rewards", "trajectories", "slice_sums"):
        client.command(f"TRUNCATE TABLE {table}")
    yield client
    client.close()


def sums(client: Client, run: str) -> list[tuple[Any, ...]]:
    """The sums of ``run``: those that are kept, or, for all runs, those that are computed from the rewards."""
    parameters = selection(PAGES[0].parameters, {"run": run})
    query = f"SELECT * FROM ({SUMS_OF_RUN}) ORDER BY kind, slice, version"
    return [tuple(row) for row in client.query(query, parameters=parameters).result_rows]


def are_equal(one: Sequence[tuple[Any, ...]], other: Sequence[tuple[Any, ...]]) -> bool:
    return len(one) == len(other) and all(
        left[:3] == right[:3] and all(isclose(*pair, rel_tol=1e-9) for pair in zip(left[3:], right[3:], strict=True))
        for left, right in zip(one, other, strict=True)
    )


def store(client: Client, rows: Sequence[tuple[Table, Row]], token: str) -> set[int]:
    """Insert ``rows``; returns the versions that they are of."""
    found = set[int]()
    for table in (TRAJECTORIES, REWARDS):
        if chosen := [row for each, row in rows if each is table]:
            inserted = arrow_table(table, chosen)
            insert(client, table, inserted, f"{token}:{table.name}")
            found |= versions_of(inserted).get(RUN, set())
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_kept_sums_equal_computed_ones_after_every_batch_and_after_a_replay(client: Client, seed: int) -> None:
    rng = random.Random(seed)
    rows = written(rng)
    batches = [rows[at : at + 120] for at in range(0, len(rows), 120)]
    for number, batch in enumerate(batches):
        recompute(client, RUN, store(client, batch, f"{seed}:{number}"))
        computed = sums(client, "")
        assert are_equal(sums(client, RUN), computed)
    assert {kind for kind, *_ in computed} == {
        "all",
        "agent",
        "source",
        "tool",
        "tenant",
        "harness",
        "channel",
        "length",
    }
    assert sum(clusters for kind, *_, clusters in computed if kind == "all") > 50
    for number, batch in enumerate(batches[:2]):
        recompute(client, RUN, store(client, batch, f"again:{seed}:{number}"))
    assert are_equal(sums(client, RUN), computed)


def test_what_a_crash_left_out_is_found_and_nothing_else_is_computed_again(client: Client) -> None:
    rows = written(random.Random(3))
    store(client, rows[:200], "before")
    compute_missing(client)
    assert are_equal(sums(client, RUN), sums(client, ""))

    store(client, rows[200:201], "lost")
    recompute_of = "SELECT version, max(computed_at) FROM slice_sums GROUP BY version"
    before = dict(client.query(recompute_of).result_rows)
    compute_missing(client)
    assert are_equal(sums(client, RUN), sums(client, ""))
    after = dict(client.query(recompute_of).result_rows)
    assert 1 <= sum(before.get(version) != moment for version, moment in after.items()) < len(after)

    store(client, rows[:200], "twice")
    compute_missing(client)
    assert dict(client.query(recompute_of).result_rows) == after


def forget_channels(client: Client) -> None:
    """Make the rows of `slice_sums` those of a release that did not know channels."""
    known = "arrayMap(at -> at != 'channel', kinds)"
    arrays = ("kinds", "slices", *SUMS.values())
    client.command(
        f"INSERT INTO slice_sums (run, version, computed_at, rewards, trajectories, {', '.join(arrays)}) "
        "SELECT run, version, computed_at + INTERVAL 1 MILLISECOND, rewards, trajectories, "
        + ", ".join(f"arrayFilter((value, is_known) -> is_known, {each}, {known})" for each in arrays)
        + " FROM slice_sums FINAL"
    )
    assert "channel" not in {kind for kind, *_ in sums(client, RUN)}


def test_rows_of_a_release_that_knew_fewer_kinds_are_computed_again_and_once(client: Client) -> None:
    store(client, written(random.Random(4))[:200], "older")
    compute_missing(client)
    forget_channels(client)
    compute_missing(client)
    assert are_equal(sums(client, RUN), sums(client, ""))
    assert "channel" in {kind for kind, *_ in sums(client, RUN)}
    computed = "SELECT version, max(computed_at) FROM slice_sums GROUP BY version ORDER BY version"
    before = client.query(computed).result_rows
    compute_missing(client)
    assert client.query(computed).result_rows == before


def test_rows_of_such_a_release_whose_trajectories_have_expired_stay(client: Client) -> None:
    store(client, written(random.Random(5))[:200], "expired")
    compute_missing(client)
    forget_channels(client)
    before = sums(client, RUN)
    assert {slice_ for kind, slice_, *_ in before if kind == "source"} == {"(none)", "wide", "deep"}
    client.command("TRUNCATE TABLE trajectories")  # after 30 days; rewards stay
    compute_missing(client)
    assert are_equal(sums(client, RUN), before)
    recompute(client, RUN, range(VERSIONS + 1))  # as after a late reward; these rows have no weeks
    assert are_equal(sums(client, RUN), before)


def test_a_late_reward_of_a_version_whose_trajectories_have_expired_leaves_its_row_as_it_is(client: Client) -> None:
    rows = written(random.Random(6))
    store(client, rows[:200], "expired")
    compute_missing(client)
    before = sums(client, RUN)
    assert {slice_ for kind, slice_, *_ in before if kind == "source"} == {"(none)", "wide", "deep"}
    client.command("TRUNCATE TABLE trajectories")
    versions = store(client, [(table, row) for table, row in rows[200:] if table is REWARDS], "late")
    assert versions
    recompute(client, RUN, versions)
    compute_missing(client)
    assert are_equal(sums(client, RUN), before)


def attempt(name: str, version: int, group: str = "", **other: Any) -> tuple[Table, Row]:
    """A row of `trajectories`, from the source "wide"."""
    return TRAJECTORIES, {
        "id_sent": name, "logged_at": NOW_MS, "offset": 0, "trajectory_id": name, "run": RUN, "group_id": group,
        "task_id": "t", "purpose": "train", "role": "trainable", "oldest_version": version, "task_source": "wide",
    } | other  # fmt: skip


def reward(name: str, version: int, group: str = "", revision: int = 0) -> tuple[Table, Row]:
    """A row of `rewards`: one half, of which every revision is."""
    return REWARDS, {
        "id_sent": f"{name}-{revision}", "logged_at": NOW_MS, "offset": revision, "trajectory_id": name, "run": RUN,
        "group_id": group, "task_id": "t", "purpose": "train", "role": "trainable", "oldest_version": version,
        "spec": "s@1", "revision": revision, "normalised": 0.5,
    }  # fmt: skip


def by_source(client: Client) -> list[tuple[str, int, int]]:
    """(source, version, rewards) of the kept sums."""
    return [(slice_, version, size) for kind, slice_, version, _, size, *_ in sums(client, RUN) if kind == "source"]


def expire(client: Client, *names: str) -> None:
    """Drop trajectories, as after 30 days."""
    client.command(
        "DELETE FROM trajectories WHERE trajectory_id IN {names:Array(String)}", parameters={"names": list(names)}
    )


WEEK_MS = 7 * 24 * 3600 * 1000


def test_trajectories_that_come_after_others_expired_do_not_make_up_for_them(client: Client) -> None:
    old = [attempt(name, 3, logged_at=NOW_MS - 3 * WEEK_MS) for name in "ab"]
    recompute(client, RUN, store(client, [*old, reward("a", 3), reward("b", 3)], "old"))
    assert by_source(client) == [("wide", 3, 2)]
    expire(client, "a", "b")
    new = [each for name in "cde" for each in (attempt(name, 3), reward(name, 3))]
    recompute(client, RUN, store(client, new, "new"))
    compute_missing(client)
    assert by_source(client) == [("wide", 3, 2)]


@pytest.mark.parametrize(
    ("expires", "late"),
    [
        pytest.param("b", "a", id="of another version: the row of version 3 counts it, too"),
        pytest.param("a", "b", id="of the oldest version: the group would count a second time, at version 4"),
    ],
)
def test_a_row_that_counts_a_group_is_final_when_a_member_expires(client: Client, expires: str, late: str) -> None:
    versions = {"a": 3, "b": 4}
    logged_at = {expires: NOW_MS - 3 * WEEK_MS, late: NOW_MS}
    attempts = [attempt(name, versions[name], "g", logged_at=logged_at[name]) for name in versions]
    rewards = [reward(name, version, "g") for name, version in versions.items()]
    recompute(client, RUN, store(client, [*attempts, *rewards], "g"))
    assert by_source(client) == [("wide", 3, 2)]
    expire(client, expires)
    recompute(client, RUN, store(client, [reward(late, versions[late], "g", 1)], "late"))
    compute_missing(client)
    assert by_source(client) == [("wide", 3, 2)]


def test_a_second_record_of_a_trajectory_does_not_make_up_for_one_that_expired(client: Client) -> None:
    rows = [attempt("a", 3), attempt("b", 3), reward("a", 3), reward("b", 3)]
    recompute(client, RUN, store(client, rows, "old"))
    expire(client, "a")
    recompute(client, RUN, store(client, [attempt("b", 3, id_sent="b again")], "again"))
    assert by_source(client) == [("wide", 3, 2)]


def test_copies_of_a_record_that_are_merged_do_not_make_a_row_final(client: Client) -> None:
    rows = [attempt("a", 3), reward("a", 3)]
    for copy in range(2):
        recompute(client, RUN, store(client, [(table, row | {"offset": copy}) for table, row in rows], f"{copy}"))
    client.command("OPTIMIZE TABLE trajectories FINAL")
    recompute(client, RUN, store(client, [attempt("b", 3), reward("b", 3)], "late"))
    assert by_source(client) == [("wide", 3, 2)]


@pytest.mark.parametrize("seed", range(2))
def test_once_some_have_expired_no_trajectory_loses_its_labels(client: Client, seed: int) -> None:
    rng = random.Random(seed)
    names = [(f"t{number}", number % 4, f"g{(number + rng.randrange(3)) // 4}") for number in range(60)]
    first, later = names[:30], names[30:]
    old = [row for name in first for row in (attempt(*name, logged_at=NOW_MS - 3 * WEEK_MS), reward(*name))]
    recompute(client, RUN, store(client, old, "first"))
    expire(client, *(name for name, *_ in rng.sample(first, 10)))
    for at in range(0, len(later), 5):
        batch = [row for name in later[at : at + 5] for row in (attempt(*name), reward(*name))]
        recompute(client, RUN, store(client, batch, f"later {at}"))
        assert {slice_ for slice_, *_ in by_source(client)} == {"wide"}
