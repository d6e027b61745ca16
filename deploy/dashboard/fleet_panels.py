"""The panels of the fleet page: what sends, serves and moves records, and what is wrong with it."""

from headrace.deploy.dashboard.panel import Axis, Form, Panel, Unit, recent
from headrace.schemas.topics import TRAINER_GROUPS

RECENT_MINUTES = 15
"""Minutes whose records make a rate."""

GATEWAY_MINUTES = 5
"""Minutes whose reports make a gateway's rates."""

LAG_MINUTES = 10
"""Minutes whose lag is shown."""

_COUNTS = f"""consumer_group NOT IN (
                SELECT concat('{TRAINER_GROUPS}', run) FROM budget GROUP BY run
                HAVING argMax(max_groups, (version, time)) = 0
            )"""
"""Condition on `lag`: the group is not that of the trainer of a finished run, for which what is left waits for ever."""

LAG_OF_GROUPS = f"""
        SELECT toUnixTimestamp64Milli(time) AS ms, consumer_group, max(seconds) AS seconds
        FROM lag FINAL WHERE {recent(LAG_MINUTES)} AND {_COUNTS}
        GROUP BY time, consumer_group ORDER BY time, consumer_group LIMIT 20000
        """
"""Seconds that each consumer group was behind, over time."""

_SPAN_S = "greatest(1, dateDiff('millisecond', min(time), max(time)) / 1000)"

_RATED = {
    "events": "events",
    "feedback": "feedback",
    "trajectories": "trajectories",
    "rewards": "rewards",
    "training": "training",
    "rejected": "rejected",
    "steps": "steps",
    "weights": "weights",
    "applied": "applied",
    "budget": "budget",
    "monitors": "monitors",
    "alerts": "alerts",
    "sdk-stats": "sdk_stats",
    "dead-letters": "dead_letters",
}
"""Topic → the table with a row for each of its records, or for a member of each."""

_ROWS = "\n            UNION ALL\n".join(
    f"            SELECT '{topic}' AS topic, uniqExact(id) AS records, max(logged_at) AS newest FROM {table}\n"
    f"            WHERE {recent(RECENT_MINUTES, 'logged_at')}"
    for topic, table in _RATED.items()
)

REPAIRS = {
    "late": "headrace dead-letters redrive --error late --all",
    "raised": "headrace dead-letters redrive --error raised --all",
    "unknown_type": "headrace dead-letters redrive --error unknown_type --all",
    "conflict": "headrace dead-letters list --error conflict",
}
"""Error → what helps: of a late record and of a fault that is mended, sending again; a conflict is looked at. For all
others the record itself is repaired first."""

_REPAIR = ", ".join(f"error = '{error}', '{command}'" for error, command in REPAIRS.items())
_PRODUCER = (
    "tryBase64Decode(JSONExtractString("
    "arrayFirst(header -> JSONExtractString(header, 1) = 'ce_source', JSONExtractArrayRaw(headers)), 2))"
)

FLEET_PANELS: tuple[Panel, ...] = (
    Panel(
        "runs",
        "Runs that published a version, the newest first.",
        """
        SELECT run, max(version) AS version, toUnixTimestamp64Milli(max(time)) AS last_ms
        FROM weights GROUP BY run ORDER BY last_ms DESC, run LIMIT 500
        """,
        title="Runs",
        form=Form.DATA,
    ),
    Panel(
        "dead_letters",
        "Records that could not be read and were not sent again: who sent them, which trajectories they are missing "
        "from, and the command that helps.",
        f"""
        SELECT bad_topic, error, {_PRODUCER} AS producer, uniqExact(id) AS records,
               uniqExactIf(trajectory_id, trajectory_id != '') AS trajectories,
               toUnixTimestamp64Milli(min(time)) AS since_ms, toUnixTimestamp64Milli(max(time)) AS newest_ms,
               argMax(message, time) AS example,
               multiIf({_REPAIR}, concat('headrace dead-letters list --open --error ', error,
                                         ', then repair and redrive')) AS repair
        FROM dead_letters
        WHERE (bad_topic, bad_partition, bad_offset) NOT IN (
            SELECT bad_topic, bad_partition, bad_offset FROM dead_letter_actions WHERE action = 'redriven'
        )
        GROUP BY bad_topic, error, producer ORDER BY newest_ms DESC, records DESC LIMIT 200
        """,
        title="Dead letters",
        form=Form.TABLE,
        values=(
            Axis("bad_topic", "Topic", Unit.TEXT),
            Axis("error", "Error", Unit.TEXT),
            Axis("producer", "Producer", Unit.TEXT),
            Axis("records", "Records", Unit.COUNT),
            Axis("trajectories", "Trajectories hurt", Unit.COUNT),
            Axis("since_ms", "Since", Unit.TIME),
            Axis("newest_ms", "Newest", Unit.TIME),
            Axis("example", "The newest one's error", Unit.TEXT),
            Axis("repair", "What helps", Unit.TEXT),
        ),
        section="Topics",
        wide=True,
        empty="Every record could be read, or was repaired and sent again.",
    ),
    Panel(
        "topics",
        f"Records of each topic in the last {RECENT_MINUTES} minutes, as they reached ClickHouse.",
        f"""
        SELECT topic, records, round(records / {RECENT_MINUTES}, 1) AS a_minute,
               if(records = 0, NULL, toUnixTimestamp64Milli(newest)) AS newest_ms
        FROM (
{_ROWS}
        ) ORDER BY records DESC, topic
        """,
        window_s=60.0 * RECENT_MINUTES,
        title="Topics",
        form=Form.TABLE,
        values=(
            Axis("topic", "Topic", Unit.TEXT),
            Axis("records", "Records", Unit.COUNT),
            Axis("a_minute", "A minute", Unit.NUMBER),
            Axis("newest_ms", "Newest", Unit.TIME),
        ),
        section="Topics",
        wide=True,
    ),
    Panel(
        "groups",
        "How far each group is behind, by topic: the age of the next record that it has not processed. An idle "
        "group is 0 s behind; markers of transactions do not count. Without trainers whose run is finished.",
        f"""
        SELECT consumer_group, topic, max(seconds) AS behind_s, sum(records) AS records,
               toUnixTimestamp64Milli(max(time)) AS measured_ms
        FROM lag FINAL
        WHERE (consumer_group, topic, partition, time) IN (
            SELECT consumer_group, topic, partition, max(time) FROM lag
            WHERE {recent(LAG_MINUTES)} AND {_COUNTS}
            GROUP BY consumer_group, topic, partition
        )
        GROUP BY consumer_group, topic ORDER BY behind_s DESC, consumer_group, topic LIMIT 500
        """,
        window_s=600.0,
        title="Consumer groups",
        form=Form.TABLE,
        values=(
            Axis("consumer_group", "Group", Unit.TEXT),
            Axis("topic", "Topic", Unit.TEXT),
            Axis("behind_s", "Behind", Unit.SECONDS),
            Axis("records", "Records behind", Unit.COUNT),
            Axis("measured_ms", "Measured", Unit.TIME),
        ),
        section="Topics",
        wide=True,
        empty="No lag was measured in the last ten minutes: the sink measures it while it runs (`headrace status`).",
    ),
    Panel(
        "lag_s",
        "Seconds that each consumer group was behind, last ten minutes, without trainers whose run is finished.",
        LAG_OF_GROUPS,
        window_s=600.0,
        title="Lag in seconds",
        form=Form.LINE,
        x=Axis("ms", "Time", Unit.TIME),
        values=(Axis("seconds", "Behind", Unit.SECONDS),),
        series="consumer_group",
        section="Topics",
        wide=True,
        empty="No lag was measured in the last ten minutes: the sink measures it while it runs (`headrace status`).",
    ),
    Panel(
        "sdks",
        "The newest counts of each SDK, those that dropped events first. Emitted and taken over = sent + in memory + "
        "on disk + dropped.",
        """
        SELECT source, argMax(emitted, time) AS emitted_, argMax(sent, time) AS sent_, argMax(queued, time) AS queued_,
               argMax(spooled, time) AS spooled_, argMax(adopted, time) AS adopted_,
               argMax(arraySum(mapValues(dropped)), time) AS dropped_,
               argMax(arrayStringConcat(arrayMap((reason, count) -> concat(reason, ': ', toString(count)),
                   mapKeys(dropped), mapValues(dropped)), ', '), time) AS reasons,
               argMax(arraySum(mapValues(altered)), time) AS altered_, toUnixTimestamp64Milli(max(time)) AS last_ms
        FROM sdk_stats
        GROUP BY source ORDER BY dropped_ DESC, spooled_ DESC, source LIMIT 500
        """,
        title="SDKs",
        form=Form.TABLE,
        values=(
            Axis("source", "Source", Unit.TEXT),
            Axis("dropped_", "Dropped", Unit.COUNT),
            Axis("reasons", "Why", Unit.TEXT),
            Axis("spooled_", "On disk", Unit.COUNT),
            Axis("queued_", "In memory", Unit.COUNT),
            Axis("sent_", "Sent", Unit.COUNT),
            Axis("emitted_", "Emitted", Unit.COUNT),
            Axis("adopted_", "Taken over", Unit.COUNT),
            Axis("altered_", "Altered values", Unit.COUNT),
            Axis("last_ms", "Last report", Unit.TIME),
        ),
        section="Senders and engines",
        wide=True,
        empty="No SDK has reported yet: each does while it sends.",
    ),
    Panel(
        "gateways",
        f"The newest report of each gateway that reported in the last {GATEWAY_MINUTES} minutes, and how many calls a "
        "second it took and failed meanwhile. Those with events in neither place first, then those whose events wait.",
        f"""
        WITH reports AS (
            SELECT source, time, calls, errors, left, open_calls, waiting, sessions, engines, unacknowledged, spooled,
                   holes, arraySum(mapValues(errors)) AS failed,
                   lagInFrame(calls, 1, calls) OVER before AS calls_before,
                   lagInFrame(arraySum(mapValues(errors)), 1, arraySum(mapValues(errors))) OVER before AS failed_before
            FROM gateway_stats FINAL
            WHERE {recent(GATEWAY_MINUTES)}
            WINDOW before AS (PARTITION BY source ORDER BY time ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
        )
        SELECT source,
               sum(if(calls >= calls_before, toInt64(calls) - toInt64(calls_before), toInt64(calls))) / {_SPAN_S}
                   AS calls_a_second,
               sum(if(failed >= failed_before, toInt64(failed) - toInt64(failed_before), toInt64(failed))) / {_SPAN_S}
                   AS errors_a_second,
               argMax(arrayStringConcat(arrayMap((kind, count) -> concat(kind, ': ', toString(count)),
                   mapKeys(errors), mapValues(errors)), ', '), time) AS errors_,
               argMax(sessions, time) AS sessions_, argMax(open_calls, time) AS open_,
               argMax(waiting, time) AS waiting_,
               argMax(arrayStringConcat(arrayMap((engine, count) -> concat(engine, ': ', toString(count)),
                   mapKeys(engines), mapValues(engines)), ', '), time) AS engines_,
               argMax(unacknowledged, time) AS unacknowledged_, argMax(spooled, time) AS spooled_,
               argMax(holes, time) AS holes_, argMax(left, time) AS left_, argMax(calls, time) AS calls_,
               toUnixTimestamp64Milli(max(time)) AS last_ms
        FROM reports GROUP BY source ORDER BY holes_ DESC, spooled_ DESC, source LIMIT 500
        """,
        window_s=60.0 * GATEWAY_MINUTES,
        title="Gateways",
        form=Form.TABLE,
        values=(
            Axis("source", "Gateway", Unit.TEXT),
            Axis("calls_a_second", "Calls a second", Unit.NUMBER),
            Axis("errors_a_second", "Errors a second", Unit.NUMBER),
            Axis("errors_", "Errors since its start", Unit.TEXT),
            Axis("sessions_", "Sessions", Unit.COUNT),
            Axis("open_", "Open calls", Unit.COUNT),
            Axis("waiting_", "Wait for an engine", Unit.COUNT),
            Axis("engines_", "Engines: calls in flight", Unit.TEXT),
            Axis("unacknowledged_", "Not in Kafka yet", Unit.COUNT),
            Axis("spooled_", "On disk", Unit.COUNT),
            Axis("holes_", "Lost", Unit.COUNT),
            Axis("left_", "Clients left", Unit.COUNT),
            Axis("calls_", "Calls since its start", Unit.COUNT),
            Axis("last_ms", "Last report", Unit.TIME),
        ),
        section="Senders and engines",
        wide=True,
        empty=f"No gateway has reported in the last {GATEWAY_MINUTES} minutes: each does every ten seconds "
        "from its first call on.",
    ),
    Panel(
        "engines",
        "The version that each engine serves, how many versions it is behind the newest one, how long its last swap "
        "took, and by how much its log-probabilities differed from the trainer's at the proof.",
        """
        SELECT engine, run, argMax(version, time) AS served, any(newest) AS published,
               toInt64(published) - toInt64(served) AS behind, argMax(swap_s, time) AS last_swap_s, max(swap_s) AS
               slowest_s, argMax(canary_max_error, time) AS proof_error, toUnixTimestamp64Milli(max(time)) AS since_ms
        FROM applied
        INNER JOIN (SELECT run, max(version) AS newest FROM weights GROUP BY run) AS published_versions USING (run)
        WHERE {run:String} = '' OR run = {run:String}
        GROUP BY engine, run ORDER BY behind DESC, since_ms DESC LIMIT 500
        """,
        title="Engines",
        form=Form.TABLE,
        values=(
            Axis("engine", "Engine", Unit.TEXT),
            Axis("run", "Run", Unit.TEXT),
            Axis("served", "Serves", Unit.VERSION),
            Axis("published", "Newest", Unit.VERSION),
            Axis("behind", "Versions behind", Unit.COUNT),
            Axis("last_swap_s", "Last swap", Unit.SECONDS),
            Axis("slowest_s", "Slowest swap", Unit.SECONDS),
            Axis("proof_error", "Proof error", Unit.NUMBER),
            Axis("since_ms", "Since", Unit.TIME),
        ),
        section="Senders and engines",
        wide=True,
        empty="No engine serves a version yet: a follower next to it swaps weights in (`headrace status`).",
    ),
)
