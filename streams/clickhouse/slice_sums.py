"""Keeps the table `slice_sums`: sums of rewards by slice, a row for each policy version of a run.

A row is computed from the tables as they are, so it is right after late rewards, duplicates and replays, and computing
it again changes nothing. Once trajectories have expired that it counts, of its version or of groups that it shares, a
row is final: rewards outlive the labels by which they are summed, and computed again they would be in the slices
"(none)". Each row keeps how many trajectories it counts of each week, so others that come later do not make up for
those that have expired.

    recompute(client, "r1", {3})   the row of version 3, and those of versions that share groups with it
    recompute_stale(client)        the rows of all versions of which something was written since
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from headrace.streams.clickhouse.slices import SUMS, VALUES, labelled_rewards, sums_by_slice
from headrace.streams.clickhouse.tables import SLICE_SUMS

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

AT_ONCE = 200
"""Most versions in one statement."""

_VERSIONS = "oldest_version IN {versions:Array(UInt32)}"
_GROUPS = f"""(SELECT group_id FROM rewards WHERE run = {{run:String}} AND group_id != '' AND {_VERSIONS})"""
_SHARING = f"""
    SELECT DISTINCT assumeNotNull(oldest_version) FROM rewards
    WHERE run = {{run:String}} AND oldest_version IS NOT NULL AND group_id IN {_GROUPS}
"""
# Counted before the sums are computed: of what is written meanwhile, the sums may have more, and never less.
_COUNTS = f"""
    SELECT oldest_version AS version, uniqExactIf(id, is_reward), uniqExactIf(id, NOT is_reward) FROM (
        SELECT oldest_version, id, true AS is_reward FROM rewards WHERE run = {{run:String}} AND {_VERSIONS}
        UNION ALL
        SELECT oldest_version, id, false AS is_reward FROM trajectories WHERE run = {{run:String}} AND {_VERSIONS}
    ) GROUP BY version
"""
# By week, as `trajectories` is partitioned: whether copies of a record were merged makes no difference.
_WEEKS = f"""
    SELECT version, groupArray(week), groupArray(held) FROM (
        SELECT version, toUInt32(toRelativeDayNum(toMonday(logged_at))) AS week, uniqExact(trajectory_number) AS held
        FROM (
            SELECT assumeNotNull(oldest_version) AS version, logged_at, trajectory_number
            FROM trajectories WHERE run = {{run:String}} AND {_VERSIONS}
            UNION ALL
            SELECT version, logged_at, trajectory_number FROM (
                SELECT DISTINCT assumeNotNull(oldest_version) AS version, group_id
                FROM rewards WHERE run = {{run:String}} AND {_VERSIONS} AND group_id != ''
            ) AS sharing
            INNER JOIN (
                SELECT group_id, logged_at, trajectory_number
                FROM trajectories WHERE run = {{run:String}} AND group_id IN {_GROUPS}
            ) AS member USING (group_id)
        ) GROUP BY version, week
    ) GROUP BY version
"""
_KEPT = f"""
    SELECT version, trajectories, weeks, of_weeks FROM {SLICE_SUMS.name} FINAL
    WHERE run = {{run:String}} AND version IN {{versions:Array(UInt32)}}
"""
_OF_RUN = (
    "run = {run:String} AND purpose = 'train' AND role != 'frozen' AND oldest_version IS NOT NULL "
    f"AND ({_VERSIONS} OR group_id IN {_GROUPS})"
)
_RECOMPUTE = f"""
    INSERT INTO {SLICE_SUMS.name} (run, version, computed_at, rewards, trajectories, weeks, of_weeks, kinds,
                                   slices, {", ".join(SUMS.values())})
    SELECT {{run:String}} AS run, place.1, now64(3, 'UTC'), place.2, place.3, place.4, place.5, kinds, slices,
           {", ".join(SUMS.values())}
    FROM (
        SELECT arrayJoin(arrayZip({{versions:Array(UInt32)}}, {{rewards:Array(UInt64)}},
                                  {{trajectories:Array(UInt64)}}, {{weeks:Array(Array(UInt32))}},
                                  {{of_weeks:Array(Array(UInt32))}})) AS place, place.1 AS own
    ) AS wanted
    LEFT ANY JOIN (
        SELECT toUInt32(version) AS own, groupArray(kind) AS kinds, groupArray(slice) AS slices,
               {", ".join(f"groupArray({each}) AS {column}" for each, column in SUMS.items())}
        FROM ({sums_by_slice(labelled_rewards(_OF_RUN, _OF_RUN, "normalised IS NOT NULL"))})
        WHERE has({{versions:Array(UInt32)}}, version) GROUP BY own
    ) AS summed USING (own)
"""
_STALE = f"""
    SELECT run, groupArray(version) FROM (
        SELECT run, assumeNotNull(oldest_version) AS version,
               uniqExactIf(id, is_reward) AS rewards, uniqExactIf(id, NOT is_reward) AS trajectories
        FROM (
            SELECT run, oldest_version, id, true AS is_reward FROM rewards
            UNION ALL
            SELECT run, oldest_version, id, false AS is_reward FROM trajectories
        ) WHERE run != '' AND oldest_version IS NOT NULL GROUP BY run, version
    ) AS held
    LEFT ANY JOIN (
        SELECT run, version, rewards AS known_rewards, trajectories AS known_trajectories, kinds AS known_kinds
        FROM {SLICE_SUMS.name} FINAL
    ) AS known USING (run, version)
    -- once trajectories have expired the row is final; more records, or an older release knew fewer kinds
    WHERE trajectories >= known_trajectories AND (
        rewards > known_rewards OR trajectories > known_trajectories
        OR (notEmpty(known_kinds) AND NOT hasAll(known_kinds, [{", ".join(f"'{kind}'" for kind in VALUES)}]))
    )
    GROUP BY run
"""


def recompute(client: "Client", run: str, versions: Collection[int]) -> None:
    """Compute the rows of ``versions`` of ``run`` again, of which rewards or trajectories were written, and of versions
    that share groups with them, unless trajectories of theirs have expired. Raises the client's ``ClickHouseError``.
    """
    ordered = sorted(versions)
    for first in range(0, len(ordered), AT_ONCE):
        _recompute(client, run, ordered[first : first + AT_ONCE])


def recompute_stale(client: "Client") -> None:
    """Compute the rows of versions again that do not count all records of theirs, or lack a kind of slice: after a
    crash, or if the table is new or an older release's, unless trajectories of theirs have expired. Raises the client's
    ``ClickHouseError``.
    """
    for run, versions in client.query(_STALE).result_rows:
        recompute(client, run, versions)


def _recompute(client: "Client", run: str, written: list[int]) -> None:
    found = client.query(_SHARING, parameters={"run": run, "versions": written}).result_rows
    versions = sorted({*written, *(version for (version,) in found)})
    parameters = {"run": run, "versions": versions}
    counts = {version: counted for version, *counted in client.query(_COUNTS, parameters=parameters).result_rows}
    by_week: dict[int, dict[int, int]] = {
        version: dict(zip(weeks, held, strict=True))
        for version, weeks, held in client.query(_WEEKS, parameters=parameters).result_rows
    }
    final = {
        version
        for version, trajectories, weeks, of_weeks in client.query(_KEPT, parameters=parameters).result_rows
        if _have_expired(trajectories, counts.get(version, (0, 0))[1])  # all that rows of older releases know
        or any(map(_have_expired, of_weeks, (by_week.get(version, {}).get(week, 0) for week in weeks)))
    }
    open_ = [version for version in versions if version not in final]
    if not open_:
        return
    rewards, trajectories = ([counts.get(version, (0, 0))[at] for version in open_] for at in (0, 1))
    held = [by_week.get(version, {}) for version in open_]
    columns = {
        "versions": open_,
        "rewards": rewards,
        "trajectories": trajectories,
        "weeks": [list(each) for each in held],
        "of_weeks": [list(each.values()) for each in held],
    }
    client.command(_RECOMPUTE, parameters={"run": run, **columns})


def _have_expired(kept: int, held: int) -> bool:
    """Whether some of ``kept`` trajectories have expired if there are ``held``."""
    return held < kept
