"""The views: named queries over the tables, whose rows never depend on how often a record was stored.

SELECT spec, avg(total) FROM rewards_latest GROUP BY spec
SELECT agent, fate, count() FROM trajectory_facts WHERE run = 'r1' GROUP BY ALL
SELECT tool, countIf(status = 'error') / count() FROM tool_calls GROUP BY tool
"""

from headrace.schemas.events import ModelCalled, Purpose, Role, TrajectoryStarted
from headrace.schemas.records.alert import AdmissionOrder, EpisodeState
from headrace.streams.clickhouse.columns import View
from headrace.streams.clickhouse.tables import EVENTS


def latest_rewards(condition: str = "") -> str:
    """Returns the query of `rewards_latest`, of the rewards for which ``condition`` holds. It may use columns that all
    rewards of a trajectory have in common, such as run, purpose and oldest_version: applied to the view, it would be
    checked after the rewards of all runs were read and ordered.
    """
    # Revisions are numbered per spec. A trajectory is scored by one spec at a time, that of its agent, so among specs
    # the order of the topic decides, as it does among rows of an older release, which have no revision. All rewards of
    # a trajectory are in one partition.
    # Both orders begin with the table's key, so rows are read in order, and not sorted as a whole.
    where = f" WHERE {condition}" if condition else ""
    return (
        f"SELECT * FROM (\n    SELECT * FROM rewards{where} ORDER BY trajectory_id, spec, revision DESC, offset DESC\n"
        "    LIMIT 1 BY trajectory_id, spec\n) ORDER BY trajectory_id, offset DESC LIMIT 1 BY trajectory_id"
    )


REWARDS_LATEST = View(
    "rewards_latest",
    "The current reward of each trajectory: one row per trajectory, regardless of revisions, spec versions and "
    "duplicates. Use this view to count and average; `rewards` also holds earlier rewards.",
    latest_rewards(),
)
EVENTS_WITH_TRAJECTORY = View(
    "events_with_trajectory",
    "Each event once, with run, agent, task_id, group_id and purpose of its trajectory, which the topic has on "
    "trajectory.started only. They are empty if that event is missing.",
    "SELECT "
    + ", ".join(f"`{column.name}`" for column in EVENTS.stored if not column.was)
    + ", run, agent, task_id, group_id, purpose\nFROM (SELECT * FROM events FINAL) AS event\nLEFT ANY JOIN (\n"
    "    SELECT trajectory_id, "
    + ", ".join(f"argMin({column.name}, (seq, offset)) AS {column.was}" for column in EVENTS.columns if column.was)
    + f"\n    FROM events WHERE type = '{TrajectoryStarted.TYPE}' GROUP BY trajectory_id\n"
    ") AS start USING (trajectory_id)",
)

# argMin and argMax skip rows whose value is null; a tuple around a value that may be null keeps them.

SUCCESS = 0.5
"""Outcome, or without one normalised reward, from which on the views call a trajectory a success."""

_ABOUT_TRAJECTORY = (
    "trajectory_id", "run", "agent", "harness_version", "tenant", "purpose", "evaluation", "role", "task_id",
    "task_source", "difficulty", "channel", "group_id",
)  # fmt: skip
"""Columns of `trajectories` that say what a row of the views below is about."""

_LABELS = ", ".join(_ABOUT_TRAJECTORY)


def trajectory_facts(
    of: str = "", *, rewarded: str = "", grouped: str = "", trained: str = "", refused: str = "", judged: str = ""
) -> str:
    """Returns the query of the view `trajectory_facts`.

    ``of``: a condition on trajectory_id, checked before anything is joined, which takes most of the time. The others
    are conditions on what is joined: rewards, `training`, `step_members`, `rejected` and `feedback`. Trajectories then
    lack what does not hold.
    """

    def both(*conditions: str) -> str:
        return " AND ".join(each for each in conditions if each)

    def where(*conditions: str) -> str:
        return f" WHERE {both(*conditions)}" if any(conditions) else ""

    return f"""SELECT
    {_LABELS},
    trajectory.oldest_version AS version, trajectory.newest_version AS newest_version, status, outcome,
    turns, segments, tokens, sampled_tokens, tools, tool_errors, tool_seconds, pruned, summaries, critical_steps,
    total_steps, subagents_assigned, subagents_finished, defects, started_at, ended_at,
    spec, revision, reward, maximum, normalised, components, weights, details, unscored,
    coalesce(outcome, normalised) >= {SUCCESS} AS success,
    advantage, baseline, baseline_value,
    step, trained_version, stage, reason,
    multiIf(step > 0, 'trained', reason != '', 'rejected', baseline != '', 'waiting',
            role = '{Role.FROZEN}', 'frozen', purpose = '{Purpose.EVALUATE}', 'evaluation', 'pending') AS fate,
    signals, first_feedback_at, last_feedback_at, last_signal, last_value,
    if(signals > 0, coalesce(stated_delay, toFloat64(dateDiff('second', ended_at, first_feedback_at))), NULL)
        AS feedback_delay_s
FROM (SELECT * FROM trajectories FINAL{where(of)}) AS trajectory
LEFT ANY JOIN (
    SELECT trajectory_id, spec, revision, total AS reward, maximum, normalised, components, weights, details, unscored
    FROM {f"({latest_rewards(both(of, rewarded))})" if of or rewarded else "rewards_latest"}
) AS rewarded USING (trajectory_id)
LEFT ANY JOIN (
    SELECT trajectory_id, argMax(toNullable(advantage), (logged_at, offset)) AS advantage,
           argMax(baseline, (logged_at, offset)) AS baseline,
           argMax(toNullable(baseline_value), (logged_at, offset)) AS baseline_value
    FROM training{where(of, grouped)} GROUP BY trajectory_id
) AS grouped USING (trajectory_id)
LEFT ANY JOIN (
    SELECT trajectory_id, min(member.step) AS step, argMin(toNullable(member.version), member.step) AS trained_version
    FROM step_members AS member{where(of, trained)} GROUP BY trajectory_id
) AS trained USING (trajectory_id)
LEFT ANY JOIN (
    SELECT trajectory_id, argMax(stage, (logged_at, offset)) AS stage, argMax(reason, (logged_at, offset)) AS reason
    FROM rejected{where(of, refused)} GROUP BY trajectory_id
) AS refused USING (trajectory_id)
LEFT ANY JOIN (
    SELECT trajectory_id, uniqExact(id) AS signals, min(toNullable(time)) AS first_feedback_at,
           max(toNullable(time)) AS last_feedback_at,
           argMin(tuple(delay_s), (time, offset)).1 AS stated_delay,
           argMax(signal, (time, offset)) AS last_signal, argMax(toNullable(value), (time, offset)) AS last_value
    FROM feedback{where(of, judged)} GROUP BY trajectory_id
) AS judged USING (trajectory_id)"""


TRAJECTORY_FACTS = View(
    "trajectory_facts",
    "Everything that is known of a trajectory, in one row: what it was, how it went (version: the oldest policy "
    "version among its tokens), its latest reward with components, its advantage, its fate (trained, rejected, waiting "
    "in a formed group, frozen or evaluation, which are never trained, or pending) with the step, 0 if it was not "
    "trained, or the reason, and its feedback. Restrict purpose to 'train' and role to 'trainable' for figures about "
    f"what is trained. A success has an outcome, or without one a normalised reward, of at least {SUCCESS}.",
    trajectory_facts(),
)
MESSAGES = View(
    "messages",
    "A message of a model call, in order: what was new in the request, and the answer. Calls whose text was not "
    "recorded, or was hidden, have none; their tokens are in the topic. Restrict trajectory_id: the text is in the "
    "payloads.",
    f"""SELECT trajectory_id, time, seq, position - 1 AS position, JSONExtractString(message, 'role') AS role,
    multiIf(JSONType(message, 'content') = 'String', JSONExtractString(message, 'content'),
            JSONType(message, 'content') = 'Null', '', JSONExtractRaw(message, 'content')) AS content,
    JSONExtractRaw(message, 'tool_calls') AS tool_calls
FROM (
    SELECT trajectory_id, time, seq, JSONExtractArrayRaw(payload, 'messages') AS messages
    FROM events FINAL WHERE type = '{ModelCalled.TYPE}'
)
ARRAY JOIN messages AS message, arrayEnumerate(messages) AS position""",
)
TURNS = View(
    "turns",
    "A turn of an assembled trajectory: a model call with the tool calls that followed it.",
    f"""SELECT {_LABELS}, oldest_version AS version, ended_at,
    number - 1 AS turn, sampled, finish_reason, pruned, summarized, countEqual(call_turns, number - 1) AS calls
FROM (
    SELECT {_LABELS}, oldest_version, ended_at, call_turns, turn_sampled_tokens, turn_finish_reasons, turn_pruned,
           turn_summarized
    FROM trajectories FINAL
)
ARRAY JOIN arrayEnumerate(turn_sampled_tokens) AS number, turn_sampled_tokens AS sampled,
           turn_finish_reasons AS finish_reason, turn_pruned AS pruned, turn_summarized AS summarized""",
)
TOOL_CALLS = View(
    "tool_calls",
    "A tool call of an assembled trajectory, with the agent, run and version of its trajectory. Arguments and result "
    "are in the payload of its events: events.call_id is call_id.",
    f"""SELECT {_LABELS}, oldest_version AS version, ended_at,
    turn, call_id, tool, status, error_class, seconds
FROM (
    SELECT {_LABELS}, oldest_version, ended_at, call_turns, call_ids, call_tools, call_statuses, call_errors,
           call_seconds
    FROM trajectories FINAL
)
ARRAY JOIN call_turns AS turn, call_ids AS call_id, call_tools AS tool, call_statuses AS status,
           call_errors AS error_class, call_seconds AS seconds""",
)
MODEL_CALLS = View(
    "model_calls",
    "A model call with its tokens as the engine counted them; if it did not, the answer's are those that were "
    "recorded, and the prompt's are null. With the agent, run and version of its trajectory, which are empty until the "
    "trajectory is assembled.",
    f"""SELECT {_LABELS}, version, time, seq, model, prompt_tokens, completion_tokens, latency_s, status
FROM (
    SELECT trajectory_id, time, seq, model, nullIf(prompt_tokens, 0) AS prompt_tokens, latency_s, status,
           if(completion_tokens > 0, completion_tokens, sampled_tokens) AS completion_tokens
    FROM events FINAL WHERE type = '{ModelCalled.TYPE}'
) AS called
LEFT ANY JOIN (
    SELECT {_LABELS}, oldest_version AS version FROM trajectories FINAL
) AS trajectory USING (trajectory_id)""",
)
COSTS = View(
    "costs",
    "What the model calls of a trajectory cost, by model: tokens times the prices in `prices`, null if the model has "
    "no price there, or if the engine did not count the prompts of some calls, whose number is in uncounted.",
    f"""SELECT {_LABELS}, version, model, calls, uncounted, prompt_tokens, completion_tokens, currency,
    if(currency = '' OR uncounted > 0, NULL,
       (prompt_tokens * per_million_prompt + completion_tokens * per_million_completion) / 1e6) AS cost
FROM (
    SELECT trajectory_id, model, uniqExact(id) AS calls, uniqExactIf(id, ifNull(prompt, 0) = 0) AS uncounted,
           sum(prompt) AS prompt_tokens, sum(completion) AS completion_tokens
    FROM (
        SELECT trajectory_id, model, id, prompt_tokens AS prompt,
               if(completion_tokens > 0, completion_tokens, sampled_tokens) AS completion
        FROM events FINAL WHERE type = '{ModelCalled.TYPE}'
    )
    GROUP BY trajectory_id, model
) AS used
LEFT ANY JOIN (SELECT * FROM prices FINAL) AS price USING (model)
LEFT ANY JOIN (
    SELECT {_LABELS}, oldest_version AS version FROM trajectories FINAL
) AS trajectory USING (trajectory_id)""",
)
REWARD_BY_HOUR = View(
    "reward_by_hour",
    "Rewards by hour of the trajectories' ends, run, agent, task source, tenant, purpose, role, spec and version.",
    """SELECT run, agent, task_source, tenant, purpose, role, spec, version, toStartOfHour(ended_at) AS hour,
    count() AS trajectories, count(reward) AS scored, avg(reward) AS mean, stddevSamp(reward) AS deviation,
    avg(normalised) AS mean_normalised
FROM (
    SELECT trajectory_id, run, agent, tenant, purpose, role, spec, oldest_version AS version, ended_at, total AS reward,
           normalised
    FROM rewards_latest
) AS rewarded
LEFT ANY JOIN (SELECT trajectory_id, task_source FROM trajectories) AS sourced USING (trajectory_id)
GROUP BY run, agent, task_source, tenant, purpose, role, spec, version, hour""",
)
COMPONENTS_BY_HOUR = View(
    "components_by_hour",
    "Components of rewards by hour of the trajectories' ends, run, agent, task source, tenant, purpose, role, spec, "
    "version and component: values before their weights.",
    """SELECT run, agent, task_source, tenant, purpose, role, spec, version, hour, component,
    count() AS trajectories, avg(value) AS mean, stddevSamp(value) AS deviation, avg(weight) AS mean_weight
FROM (
    SELECT trajectory_id, run, agent, tenant, purpose, role, spec, oldest_version AS version,
           toStartOfHour(ended_at) AS hour, arrayJoin(mapKeys(components)) AS component,
           components[component] AS value, weights[component] AS weight
    FROM rewards_latest
) AS rewarded
LEFT ANY JOIN (SELECT trajectory_id, task_source FROM trajectories) AS sourced USING (trajectory_id)
GROUP BY run, agent, task_source, tenant, purpose, role, spec, version, hour, component""",
)
TASK_STATS = View(
    "task_stats",
    "Attempts at each task by run, agent, purpose and role: how many succeeded (see trajectory_facts), and in how many "
    "groups all rewards were equal, so that nothing could be learnt.",
    f"""SELECT run, agent, purpose, role, task_id, any(task_source) AS task_source, any(difficulty) AS difficulty,
    count() AS attempts, countIf(coalesce(outcome, normalised) IS NOT NULL) AS scored,
    countIf(coalesce(outcome, normalised) >= {SUCCESS}) AS successes,
    if(scored > 0, successes / scored, NULL) AS pass_rate, avg(reward) AS mean_reward,
    uniqExactIf(group_id, group_id != '') AS groups,
    uniqExactIf(group_id, startsWith(reason, 'zero_variance')) AS groups_without_variance,
    uniqExactIf(group_id, reason = 'zero_variance_all_success') AS groups_all_success,
    uniqExactIf(group_id, reason = 'zero_variance_all_fail') AS groups_all_fail
FROM (
    SELECT trajectory_id, run, agent, purpose, role, task_id, task_source, difficulty, group_id, outcome
    FROM trajectories FINAL
) AS trajectory
LEFT ANY JOIN (SELECT trajectory_id, total AS reward, normalised FROM rewards_latest) AS rewarded USING (trajectory_id)
LEFT ANY JOIN (
    SELECT trajectory_id, argMax(reason, (logged_at, offset)) AS reason FROM rejected GROUP BY trajectory_id
) AS refused USING (trajectory_id)
GROUP BY run, agent, purpose, role, task_id""",
)
FEEDBACK_COVERAGE = View(
    "feedback_coverage",
    "How many trajectories got feedback, and how long after their end, by run, agent, tenant, purpose, role, version "
    "and day of their end. The delay is that of the first feedback, as its sender stated it or else by its time.",
    """SELECT run, agent, tenant, purpose, role, version, toDate(ended_at) AS day,
    count() AS trajectories, countIf(given > 0) AS with_feedback, with_feedback / trajectories AS coverage,
    sum(given) AS signals, quantileExactInclusive(0.5)(delay) AS median_delay_s,
    quantileExactInclusive(0.95)(delay) AS p95_delay_s
FROM (
    SELECT run, agent, tenant, purpose, role, version, ended_at, judged.signals AS given,
           if(given > 0, coalesce(stated_delay, toFloat64(dateDiff('second', ended_at, first_at))), NULL) AS delay
    FROM (
        SELECT trajectory_id, run, agent, tenant, purpose, role, oldest_version AS version, ended_at
        FROM trajectories FINAL
    ) AS trajectory
    LEFT ANY JOIN (
        SELECT trajectory_id, uniqExact(id) AS signals, min(time) AS first_at,
               argMin(tuple(delay_s), (time, offset)).1 AS stated_delay
        FROM feedback GROUP BY trajectory_id
    ) AS judged USING (trajectory_id)
)
GROUP BY run, agent, tenant, purpose, role, version, day""",
)

_REPORTS = f"state != '{EpisodeState.ACKNOWLEDGED}'"
"""Whether a row of `alerts` reports a monitor's reading; an acknowledgement repeats an older one."""

EPISODES = View(
    "episodes",
    "An episode of a monitor, or of a condition of the process on call: state, reading and evidence as its newest "
    "alert reports them, and who acknowledged it, which ends nothing, or resumed admission. is_open: it still alarms. "
    "changed_at is the time of its newest alert.",
    f"""SELECT episode, about.1 AS run, about.2 AS monitor, about.3 AS agent, about.4 AS task_source, about.5 AS spec,
    about.6 AS severity, newest.1 AS state, newest.1 != '{EpisodeState.RESOLVED}' AS is_open, newest.2 AS message,
    newest.3 AS details, newest.4 AS since_version, newest.5 AS since, newest.6 AS strength, newest.7 AS examples,
    newest.8 AS runbook, newest.9 AS admission, opened_at, changed_at,
    arrayDistinct(arrayMap(each -> each.2, arraySort(seen))) AS acknowledged_by,
    arrayDistinct(arrayMap(each -> each.2, arraySort(resumed))) AS resumed_by,
    is_open AND admission = '{AdmissionOrder.PAUSE}' AND empty(resumed_by) AS pauses
FROM (
    SELECT episode,
           argMaxIf(tuple(run, monitor, agent, task_source, spec, severity), offset, {_REPORTS}) AS about,
           argMaxIf(tuple(state, message, details, since_version, since, strength, examples, runbook, admission),
                    offset, {_REPORTS}) AS newest,
           minIf(time, {_REPORTS}) AS opened_at, maxIf(time, {_REPORTS}) AS changed_at,
           groupArrayIf(tuple(offset, toString(acknowledged_by)), NOT ({_REPORTS})) AS seen,
           groupArrayIf(tuple(offset, toString(acknowledged_by)),
                        NOT ({_REPORTS}) AND admission = '{AdmissionOrder.RESUME}') AS resumed,
           countIf({_REPORTS}) AS reports
    FROM alerts WHERE episode != '' GROUP BY episode
)
WHERE reports > 0""",
)

VIEWS: tuple[View, ...] = (
    REWARDS_LATEST,
    EVENTS_WITH_TRAJECTORY,
    TRAJECTORY_FACTS,
    MESSAGES,
    TURNS,
    TOOL_CALLS,
    MODEL_CALLS,
    COSTS,
    REWARD_BY_HOUR,
    COMPONENTS_BY_HOUR,
    TASK_STATS,
    FEEDBACK_COVERAGE,
    EPISODES,
)
"""Every view, those first that others use."""
