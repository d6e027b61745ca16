"""The tables that the sink fills. These specs are the only definition of the tables.

Every row has the id and the position of its record. A record that is written twice has the same id, so its rows
collapse: read with ``FINAL``, or count distinct ids, if the exact number matters.

    SELECT type, count() FROM events FINAL GROUP BY type
    SELECT feedback.signal, avg(value) FROM feedback FINAL GROUP BY signal

The views (:mod:`views`) show every row once.
"""

from headrace.schemas import topics
from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.events import ModelCalled, TrajectoryStarted
from headrace.schemas.task_labels import DIFFICULTY_FIELDS
from headrace.streams.clickhouse.columns import (
    COUNT,
    COUNTS,
    COUNTS_BY_NAME,
    FLAG,
    JSON_TEXT,
    LABEL,
    LABELS,
    MAYBE_COUNT,
    MAYBE_NUMBER,
    MAYBE_NUMBERS,
    NAME,
    NAMES,
    NUMBER,
    NUMBERS,
    NUMBERS_BY_NAME,
    PLACE,
    TEXT,
    TIME,
    UUID,
    Column,
    Index,
    Table,
)

_IS_UUID = "toString(toUUIDOrZero(id_sent)) = id_sent"
"""Whether a sent id is a UUID in its usual form. Others of its forms (capitals, no dashes) are other texts, so other
ids. ClickHouse evaluates it once per row, for `id` and `id_text`."""

_RECORD = (
    Column(
        "id_sent",
        TEXT,
        "Id of the record, in inserts only.",
        only_inserted=True,
        from_old="id",
    ),
    Column(
        "id",
        UUID,
        "Id of the record; records with equal ids are duplicates. Made from a hash of id_text if that is not empty.",
        computed=f"if({_IS_UUID}, toUUIDOrZero(id_sent), reinterpretAsUUID(substring(SHA256(id_sent), 1, 16)))",
    ),
    Column(
        "id_text",
        NAME,
        "Id of the record as it was sent, if it is not a UUID in its usual form; else empty.",
        computed=f"if({_IS_UUID}, '', id_sent)",
    ),
    Column("time", TIME, "Time of the event (facts), or stream time of the record's inputs (derived records)."),
    Column("source", LABEL, "Source of the record, the CloudEvents attribute."),
    Column("partition", COUNT, "Partition of the record in its topic."),
    Column("offset", PLACE, "Offset of the record in the partition."),
    Column(
        "logged_at",
        TIME,
        "Timestamp of the record in Kafka, by which its topic's retention counts; rows expire by it, too.",
        from_old="now64(3, 'UTC')",
    ),
)
_RUN = Column("run", LABEL, "Training run, or recorded data set; empty if unknown.")
_TRAJECTORY = Column("trajectory_id", NAME, "The trajectory.")
_TASK = Column("task_id", NAME, "The task; empty if unknown.")
_GROUP = Column("group_id", NAME, "Group of attempts at one task; empty if there is none.")

NUMBER_OF_TRAJECTORY = "cityHash64(trajectory_id)"
"""Expression: the trajectory of a row as a number, by which rows are joined and looked up in half the time that its id
takes. Of ten million trajectories two have one number with a probability of one in 400,000."""

_NUMBER = Column(
    "trajectory_number",
    PLACE,
    "The trajectory as a number, a hash of its id, by which rows are joined faster.",
    computed=NUMBER_OF_TRAJECTORY,
)
# Two clusters with one number, of which there are less than one in a million runs, would count as one for an interval,
# and not change the mean.
_CLUSTER = Column(
    "cluster",
    PLACE,
    "The group, else the task, else the trajectory, as a number, a hash: values of one cluster are not independent, so "
    "intervals count clusters.",
    computed="cityHash64(multiIf(group_id != '', group_id, task_id != '', task_id, trajectory_id))",
)
_PLACE = (
    Column("trajectory_partition", COUNT, "Partition of the trajectory's record in `trajectories`."),
    Column("trajectory_offset", PLACE, "Offset of the trajectory's record in `trajectories`."),
)
_OLDEST = Column("oldest_version", MAYBE_COUNT, "Oldest policy version among its tokens.")
_SAMPLED = Column("sampled_tokens", COUNT, "Tokens that the model sampled.")
_SPEC = Column("spec", LABEL, "Reward spec with its version.")

_IS_MODEL_CALL = f"type = '{ModelCalled.TYPE}'"
_START_ONLY = "on trajectory.started only; the view events_with_trajectory has it on every event"

EVENTS = Table(
    "events",
    "An event emitted by an agent.",
    (
        *_RECORD,
        Column("type", LABEL, "Type with version: headrace.tool.called.v1."),
        _TRAJECTORY,
        Column("seq", COUNT, "Position in the trajectory, from 0."),
        Column("started_run", LABEL, f"{_RUN.about[:-1]} ({_START_ONLY}).", was="run"),
        Column("started_agent", LABEL, f"Agent ({_START_ONLY}).", was="agent"),
        Column("started_task_id", NAME, f"{_TASK.about[:-1]} ({_START_ONLY}).", was="task_id"),
        Column("started_group_id", NAME, f"{_GROUP.about[:-1]} ({_START_ONLY}).", was="group_id"),
        Column(
            "started_purpose",
            LABEL,
            f"train or evaluate ({_START_ONLY}).",
            was="purpose",
            from_old=f"if(type = '{TrajectoryStarted.TYPE}', "
            "if(JSONExtractString(payload, 'purpose') = '', 'train', JSONExtractString(payload, 'purpose')), '')",
        ),
        Column("tool", LABEL, "Tool, or sub-agent; empty on other events."),
        Column(
            "call_id", NAME, "Pairs a tool's call and return inside the trajectory; id of a model call, if recorded."
        ),
        Column("status", LABEL, "Status of a tool's return, a sub-agent or the trajectory's end; finish reason."),
        Column("error_class", LABEL, "Cause of a failed tool call."),
        Column("latency_s", MAYBE_NUMBER, "Seconds from call to return."),
        Column("sampled_tokens", MAYBE_COUNT, "Tokens sampled (model.called); null if token ids are unknown."),
        Column(
            "model",
            LABEL,
            "Model name in the request (model.called).",
            from_old=f"if({_IS_MODEL_CALL}, JSONExtractString(payload, 'model'), '')",
        ),
        *(
            Column(
                f"{kind}_tokens",
                MAYBE_COUNT,
                f"{what}, as the engine counted them; 0 if it reported none (model.called).",
                from_old=f"if({_IS_MODEL_CALL}, JSONExtractUInt(payload, 'usage', '{kind}_tokens'), NULL)",
            )
            for kind, what in (("prompt", "Tokens of the prompt"), ("completion", "Tokens of the answer"))
        ),
        Column("outcome", MAYBE_NUMBER, "Verifiable outcome (trajectory.ended)."),
        Column("answer", JSON_TEXT, "Final answer as JSON (trajectory.ended)."),
        Column("payload", JSON_TEXT, "The whole event as JSON, token arrays included."),
    ),
    key=("trajectory_id", "seq", "id"),
    topic=topics.EVENTS,
    clock="logged_at",
)
STARTS = Table(
    "starts",
    "A trajectory that has started, until its start expires in `events`. Written a few seconds after the start is in "
    "`events`.",
    (
        *(column for column in _RECORD if column.name not in ("time", "source")),
        _TRAJECTORY,
        _RUN,
        _GROUP,
        Column("purpose", LABEL, "train or evaluate."),
    ),
    key=("trajectory_id",),
    topic=topics.EVENTS,
    clock="logged_at",
    computed_from=("events",),
)
TRAJECTORIES = Table(
    "trajectories",
    "A trajectory, assembled from its events; its tokens are only in the topic.",
    (
        *_RECORD,
        _TRAJECTORY,
        _RUN,
        _TASK,
        _GROUP,
        Column("group_size", MAYBE_COUNT, "Expected number of attempts in the group."),
        Column("agent", LABEL, "Agent."),
        Column("harness_version", LABEL, "Version of the code around the model."),
        Column("role", LABEL, "trainable or frozen."),
        Column("purpose", LABEL, "train or evaluate."),
        Column("evaluation", LABEL, "Label of an evaluation: greedy or sampled; empty on other trajectories."),
        Column("parent_trajectory_id", NAME, "The orchestrator's trajectory."),
        Column("tenant", LABEL, "Owner of the data."),
        Column("consent", FLAG, "Whether it may be trained on."),
        Column("task", JSON_TEXT, "Data of the task for the reward, which the model does not see, as JSON."),
        Column(
            "task_source",
            LABEL,
            "Source that the task names, such as a corpus; empty if it names none.",
            from_old="JSONExtractString(task, 'source')",
        ),
        Column(
            "difficulty",
            LABEL,
            f"Difficulty of the task: the first of its fields {', '.join(DIFFICULTY_FIELDS)}; empty without one.",
            from_old="trim(BOTH '\"' FROM coalesce("
            + ", ".join(f"nullIf(JSONExtractRaw(task, '{name}'), '')" for name in DIFFICULTY_FIELDS)
            + ", ''))",
        ),
        Column(
            "channel",
            LABEL,
            f"Where the agent was asked, such as web or slack: the first {MAX_NAME} characters of the task's text "
            "`channel`; empty if it names none.",
            # JSONExtractString returns numbers, lists and objects, too, as JSON.
            computed="if(JSONType(task, 'channel') = 'String', "
            f"substringUTF8(JSONExtractString(task, 'channel'), 1, {MAX_NAME}), '')",
        ),
        Column("status", LABEL, "How it ended; empty if it did not end."),
        Column("outcome", MAYBE_NUMBER, "Verifiable outcome."),
        Column("answer", JSON_TEXT, "Final answer as JSON."),
        Column("turns", COUNT, "Turns: model calls, each with the facts that followed it."),
        Column("segments", COUNT, "Sequences of calls whose context only grew, forks included."),
        Column("tokens", COUNT, "Tokens of all segments, context included: what segments share counts in each."),
        _SAMPLED,
        Column("tools", COUNTS_BY_NAME, "Calls of each tool."),
        Column("tool_errors", COUNTS_BY_NAME, "Failed tool calls by cause."),
        Column("tool_seconds", NUMBER, "Seconds in tools."),
        Column("pruned", COUNT, "Pieces that were pruned from the context."),
        Column("summaries", COUNT, "Times the context was summarised."),
        Column("critical_steps", COUNT, "Steps on the critical path, with sub-agents in parallel."),
        Column("total_steps", COUNT, "Model calls, including those of sub-agents."),
        Column("subagents_assigned", COUNT, "Sub-agents started."),
        Column("subagents_finished", COUNT, "Sub-agents that completed."),
        Column("events", COUNT, "Readable events."),
        Column("duplicates", COUNT, "Duplicate events."),
        Column("missing", COUNT, "Events that never arrived."),
        Column("defects", LABELS, "Why it cannot be trained; empty if it can."),
        Column("versions", COUNTS, "Policy versions that sampled it, ascending."),
        _OLDEST,
        Column("newest_version", MAYBE_COUNT, "Newest policy version among its tokens."),
        Column("first_partition", COUNT, "Partition of its first event in `events`."),
        Column("first_offset", PLACE, "Offset of its first event."),
        Column("last_offset", PLACE, "Offset of its last event."),
        Column("started_at", TIME, "Time of its earliest event."),
        Column("ended_at", TIME, "Time of its latest event."),
        Column("turn_sampled_tokens", COUNTS, "Of each turn: tokens sampled. The view turns has a row per turn."),
        Column("turn_finish_reasons", LABELS, "Of each turn: why sampling stopped; empty if unknown."),
        Column("turn_pruned", COUNTS, "Of each turn: pieces that it removed from the context."),
        Column("turn_summarized", COUNTS, "Of each turn: 1 if it ended with a summary of the context."),
        Column("call_turns", COUNTS, "Of each tool call: its turn, from 0. The view tool_calls has a row per call."),
        Column("call_ids", NAMES, "Of each tool call: id that pairs it with its events."),
        Column("call_tools", LABELS, "Of each tool call: the tool."),
        Column("call_statuses", LABELS, "Of each tool call: ok or error; empty if it never returned."),
        Column("call_errors", LABELS, "Of each tool call: cause of its failure; empty without one."),
        Column("call_seconds", MAYBE_NUMBERS, "Of each tool call: seconds to its return; null if unknown."),
        _NUMBER,
        _CLUSTER,
    ),
    key=("trajectory_id", "id"),
    topic=topics.TRAJECTORIES,
    clock="logged_at",
    indexes=(
        Index("by_group", "group_id", "bloom_filter(0.01)"),
        Index("by_parent", "parent_trajectory_id", "bloom_filter(0.01)"),
    ),
)
REWARDS = Table(
    "rewards",
    "The reward of a trajectory under one version of one reward spec. Late feedback adds a row with a new revision; so "
    "does a new version of the spec. The view rewards_latest has one row per trajectory.",
    (
        *_RECORD,
        _TRAJECTORY,
        *_PLACE,
        _RUN,
        _TASK,
        _GROUP,
        Column("agent", LABEL, "Agent."),
        Column("tenant", LABEL, "Owner of the data."),
        Column("purpose", LABEL, "train or evaluate."),
        Column("role", LABEL, "trainable or frozen."),
        _SPEC,
        Column("revision", COUNT, "0 for the first reward; late feedback makes another, which replaces it."),
        Column("total", MAYBE_NUMBER, "The reward; null if it could not be computed."),
        Column("maximum", MAYBE_NUMBER, "Largest possible total."),
        Column("normalised", MAYBE_NUMBER, "total / maximum."),
        Column("unscored", LABEL, "Why there is no total."),
        Column("components", NUMBERS_BY_NAME, "Raw value of each component."),
        Column("weights", NUMBERS_BY_NAME, "Weight of each component at the time."),
        Column(
            "details",
            NUMBERS_BY_NAME,
            "Parts of a component's value, such as a judge's score for each rubric, as component.part.",
        ),
        Column("defects", LABELS, "Labels of the trajectory."),
        _OLDEST,
        Column("newest_version", MAYBE_COUNT, "Newest policy version among its tokens."),
        _SAMPLED,
        Column("turns", COUNT, "Model calls, plus one if a tool was called before the first."),
        Column("status", LABEL, "How the trajectory ended."),
        Column("ended_at", TIME, "Time of its latest event."),
        _NUMBER,
        _CLUSTER,
    ),
    key=("trajectory_id", "spec", "id"),
    topic=topics.REWARDS,
    clock="logged_at",
)
SLICE_SUMS = Table(
    "slice_sums",
    "Sums of the rewards of a run's training rollouts by slice, for a policy version: what means, and their intervals "
    "by cluster, are computed from. A cluster is a group, or else the attempts at one task by this version; a group "
    "counts as a whole at its oldest version. Computed again some seconds after rewards or trajectories of the version "
    "were written.",
    (
        Column("run", LABEL, "Training run."),
        Column("version", COUNT, "Policy version."),
        Column("computed_at", TIME, "When it was computed; of rows with equal run and version the newest holds."),
        Column("rewards", PLACE, "Records of `rewards` with this run and oldest version that it is computed from."),
        Column("trajectories", PLACE, "Records of `trajectories`, the same."),
        Column(
            "weeks",
            COUNTS,
            "Weeks in which trajectories of this version, or of groups with one of this version, were logged: their "
            "Mondays, as days since 1970. Once fewer are left of one, the row is final.",
        ),
        Column("of_weeks", COUNTS, "Of each such week: number of these trajectories."),
        Column(
            "kinds", LABELS, "Of each slice: its kind, agent, source, tool, tenant, harness, channel, length or all."
        ),
        Column("slices", NAMES, "Of each slice: its name; (none) for trajectories without a label of the kind."),
        Column("totals", NUMBERS, "Of each slice: sum of the rewards, as shares of the largest possible reward."),
        Column("sizes", COUNTS, "Of each slice: number of rewards."),
        Column("squares", NUMBERS, "Of each slice: sum over clusters of the square of the cluster's total."),
        Column("products", NUMBERS, "Of each slice: sum over clusters of the cluster's total times its size."),
        Column("square_sizes", NUMBERS, "Of each slice: sum over clusters of the square of the cluster's size."),
        Column("clusters", COUNTS, "Of each slice: number of clusters."),
    ),
    key=("run", "version"),
    newest_by="computed_at",
    computed_from=("rewards", "trajectories"),
)
TRAINING = Table(
    "training",
    "A member of a training group: a trajectory that carries a gradient.",
    (
        *_RECORD,
        _RUN,
        _TASK,
        _GROUP,
        _SPEC,
        Column("baseline", LABEL, "Name of the baseline."),
        Column("baseline_value", NUMBER, "Baseline that was subtracted."),
        Column("scored", COUNT, "Members of the group that had a reward."),
        Column("reward_std", MAYBE_NUMBER, "Sample standard deviation of their rewards; null for a single member."),
        _TRAJECTORY,
        *_PLACE,
        Column("reward", NUMBER, "Its reward."),
        Column("advantage", NUMBER, "Reward minus baseline."),
        _OLDEST,
        _SAMPLED,
    ),
    key=("group_id", "trajectory_id", "id"),
    topic=topics.TRAINING,
    clock="logged_at",
)
REJECTED = Table(
    "rejected",
    "A trajectory that will not be trained, with the reason.",
    (
        *_RECORD,
        _TRAJECTORY,
        *_PLACE,
        Column("stage", LABEL, "Stage that rejected it: group, admission or training."),
        Column("reason", LABEL, "Reason."),
        _RUN,
        _TASK,
        _GROUP,
        Column("policy_version", MAYBE_COUNT, "Oldest policy version among its tokens."),
        Column("reward", MAYBE_NUMBER, "Its reward, if it has one."),
    ),
    key=("trajectory_id", "id"),
    topic=topics.REJECTED,
    clock="logged_at",
)
_STEP = (
    Column("step", COUNT, "The optimiser step, from 1."),
    Column("version", COUNT, "Policy version that the step produced."),
)
STEPS = Table(
    "steps",
    "An optimiser step.",
    (
        *_RECORD,
        _RUN,
        *_STEP,
        Column("groups", COUNT, "Groups trained."),
        Column("trajectories", COUNT, "Trajectories trained."),
        Column("config_sha256", TEXT, "Hash of the trainer's settings."),
        Column("data_sha256", TEXT, "Hash of the packed batch."),
        Column("metrics", NUMBERS_BY_NAME, "Loss, importance ratios, KL, entropy, gradient norm, tokens, seconds …"),
    ),
    key=("run", "step", "id"),
    topic=topics.STEPS,
    clock="logged_at",
)
STEP_MEMBERS = Table(
    "step_members",
    "A trajectory that a step trained on.",
    (
        *_RECORD,
        _RUN,
        *_STEP,
        _GROUP,
        Column("group_partition", COUNT, "Partition of the group's record in `training`."),
        Column("group_offset", PLACE, "Offset of the group's record in `training`."),
        _TRAJECTORY,
        *_PLACE,
    ),
    key=("run", "step", "trajectory_id", "id"),
    topic=topics.STEPS,
    clock="logged_at",
    indexes=(Index("by_trajectory", "trajectory_id", "bloom_filter(0.01)"),),
)
WEIGHTS = Table(
    "weights",
    "A published policy version.",
    (
        *_RECORD,
        _RUN,
        Column("version", COUNT, "Policy version; 0 is the base model."),
        Column("parent", MAYBE_COUNT, "The version it was trained from."),
        Column("kind", LABEL, "anchor (complete) or delta."),
        Column("manifest_uri", TEXT, "URI of its manifest."),
        Column("sha256", TEXT, "Hash of the manifest's bytes."),
        Column("size", PLACE, "Bytes of the weights."),
        Column("step", COUNT, "The step that produced it; 0 for the base."),
    ),
    key=("run", "version", "id"),
    topic=topics.WEIGHTS,
    clock="logged_at",
)
BUDGET = Table(
    "budget",
    "How many groups samplers may have in progress, from a policy version on.",
    (
        *_RECORD,
        _RUN,
        Column("version", COUNT, "Policy version from which on it applies."),
        Column("groups_per_step", COUNT, "Groups that a step is trained on."),
        Column("max_steps_ahead", COUNT, "Steps' worth of groups that may be in progress beyond the next step's."),
        Column("max_groups", COUNT, "Most groups in progress: begun, and neither trained nor rejected."),
    ),
    key=("run", "version", "id"),
    topic=topics.BUDGET,
    clock="logged_at",
)
APPLIED = Table(
    "applied",
    "An engine serves a policy version, verified against the canaries' log-probabilities.",
    (
        *_RECORD,
        _RUN,
        Column("engine", LABEL, "The inference engine."),
        Column("version", COUNT, "Policy version."),
        Column("download_s", NUMBER, "Seconds to fetch and verify."),
        Column("swap_s", NUMBER, "Seconds for which requests were paused."),
        Column("canary_max_error", NUMBER, "Largest difference of log-probabilities over the canaries."),
    ),
    key=("run", "engine", "version", "id"),
    topic=topics.APPLIED,
    clock="logged_at",
)
ALERTS = Table(
    "alerts",
    "An alert for an operator.",
    (
        *_RECORD,
        _RUN,
        Column("part", LABEL, "Part that raised it."),
        Column("kind", LABEL, "Kind, a stable name."),
        Column("severity", LABEL, "warning or critical."),
        Column("message", TEXT, "Problem and remedy."),
        Column("details", JSON_TEXT, "Details, as JSON."),
        Column("episode", NAME, "Episode of a monitor that it belongs to; empty for other problems."),
        Column("monitor", LABEL, "The monitor that alarms; empty without an episode."),
        Column("state", LABEL, "opened, ongoing, acknowledged or resolved; empty without an episode."),
        Column("agent", LABEL, "Agent that the monitor watches; empty if unknown."),
        Column("task_source", LABEL, "Task source that it watches; empty if the tasks name none."),
        Column("spec", LABEL, "Reward spec with its version, or signal of feedback; empty if it depends on neither."),
        Column("since_version", MAYBE_COUNT, "First policy version of the windows in which the evidence grew."),
        Column("since", TIME, "Stream time at which the evidence began to grow; 1970 without an episode."),
        Column("strength", NUMBER, "Evidence, relative to that from which the monitor alarms."),
        Column("examples", NAMES, "Up to five trajectories that show it best."),
        Column("acknowledged_by", LABEL, "Who acknowledged it (acknowledged)."),
        Column("admission", LABEL, "What the trainer is asked to do: none, pause or resume; empty without an episode."),
        Column("runbook", LABEL, "Runbook that says how to find the cause: headrace runbook prints it."),
    ),
    key=("time", "id"),
    topic=topics.ALERTS,
    clock="logged_at",
)
MONITORS = Table(
    "monitors",
    "What a monitor says about a window of trajectories, compared with those before it. Effects are in standard "
    "deviations of the windows' values.",
    (
        *_RECORD,
        _RUN,
        Column("lane", LABEL, "Kind of observations: attempt, reward, fate, feedback or input."),
        Column("agent", LABEL, "Agent; empty if unknown."),
        Column("task_source", LABEL, "Task source; empty if the tasks name none, and for lanes that do not tell it."),
        Column("spec", LABEL, "Reward spec with its version, or signal of feedback; empty for other lanes."),
        Column("window", PLACE, "Number of the window of this run, lane, agent, source and spec, from 0."),
        Column("first_version", MAYBE_COUNT, "Oldest policy version in the window; null if unknown."),
        Column("last_version", MAYBE_COUNT, "Newest policy version in the window; null if unknown."),
        Column("since", TIME, "Stream time of its first observation."),
        Column("until", TIME, "Stream time of its last observation."),
        Column("monitor", LABEL, "The monitor."),
        Column("value", NUMBER, "Its value."),
        Column("trajectories", COUNT, "Trajectories of the window that the value was computed from."),
        Column("pinned", MAYBE_NUMBER, "Mean of the first windows, which stays; null while it is learnt."),
        Column("expected", MAYBE_NUMBER, "Moving mean, with which the value is compared; null while it is learnt."),
        Column("sd", MAYBE_NUMBER, "Standard deviation of the value from window to window; null while it is learnt."),
        Column("effect", MAYBE_NUMBER, "(value - pinned) / sd."),
        Column("change", MAYBE_NUMBER, "(value - value of the window before) / sd."),
        Column("strength", NUMBER, "Evidence for a change: from 1 on the monitor alarms."),
    ),
    key=("run", "lane", "agent", "task_source", "spec", "monitor", "window", "id"),
    topic=topics.MONITORS,
    clock="logged_at",
)
DEAD_LETTERS = Table(
    "dead_letters",
    "A record that could not be used, with all its bytes.",
    (
        *_RECORD,
        Column("bad_topic", LABEL, "Topic of the original."),
        Column("bad_partition", COUNT, "Partition of the original."),
        Column("bad_offset", PLACE, "Offset of the original."),
        Column("error", LABEL, "Kind of error."),
        Column("message", TEXT, "Error message."),
        Column("key_base64", TEXT, "Original key, base64."),
        Column("value_base64", JSON_TEXT, "Original bytes, base64; decode with base64Decode."),
        Column("headers", JSON_TEXT, "Original headers as JSON, values base64."),
        Column("written_at", TIME, "Original timestamp."),
        _TRAJECTORY,
    ),
    key=("bad_topic", "bad_partition", "bad_offset", "id"),
    topic=topics.DEAD_LETTERS,
    clock="logged_at",
)
DEAD_LETTER_ACTIONS = Table(
    "dead_letter_actions",
    "A repair or redrive of a dead letter.",
    (
        *_RECORD,
        Column("action", LABEL, "repaired, or redriven (sent again)."),
        Column("bad_topic", LABEL, "Topic of the original."),
        Column("bad_partition", COUNT, "Partition of the original."),
        Column("bad_offset", PLACE, "Offset of the original."),
        Column("key_base64", TEXT, "Repaired key, base64 (repaired)."),
        Column("value_base64", JSON_TEXT, "Repaired bytes, base64 (repaired)."),
        Column("headers", JSON_TEXT, "Repaired headers as JSON, values base64 (repaired)."),
        Column("sha256", TEXT, "Hash of the content that was sent (redriven)."),
        Column("trajectory_id", NAME, "Trajectory under which it was sent; empty if there is none (redriven)."),
        Column("redrive_of", TEXT, "The closed trajectory that was sent again as a new one (redriven)."),
        Column("records", COUNT, "Records that were sent (redriven)."),
    ),
    key=("bad_topic", "bad_partition", "bad_offset", "time", "id"),
    topic=topics.DEAD_LETTERS,
    clock="logged_at",
)
FEEDBACK = Table(
    "feedback",
    "Feedback on a trajectory, possibly much later.",
    (
        *_RECORD,
        _TRAJECTORY,
        Column("signal", LABEL, "Kind: score, accepted, edit_persisted …"),
        Column("value", NUMBER, "Its value, in the signal's own scale."),
        Column("delay_s", MAYBE_NUMBER, "Seconds since the trajectory ended."),
        Column("comment", JSON_TEXT, "Comment, if given."),
    ),
    key=("trajectory_id", "id"),
    topic=topics.FEEDBACK,
    clock="logged_at",
)
SDK_STATS = Table(
    "sdk_stats",
    "Counts of an SDK since it started.",
    (
        *_RECORD,
        Column("emitted", PLACE, "Events the agent emitted."),
        Column("sent", PLACE, "Events acknowledged by the broker."),
        Column("queued", PLACE, "Events waiting in memory."),
        Column("spooled", PLACE, "Events waiting on disk."),
        Column("replayed", PLACE, "Events that were on disk and have been sent since."),
        Column("adopted", PLACE, "Events that ended processes left on disk and this one took over."),
        Column("dropped", COUNTS_BY_NAME, "Events dropped, by reason."),
        Column("altered", COUNTS_BY_NAME, "Values that were altered before sending, by kind."),
    ),
    key=("source", "time", "id"),
    topic=topics.SDK_STATS,
    clock="logged_at",
)
GATEWAY_STATS = Table(
    "gateway_stats",
    "Counts of a gateway's calls since it started, and what is open in it, every ten seconds.",
    (
        *_RECORD,
        Column("calls", PLACE, "Calls that it took."),
        Column("errors", COUNTS_BY_NAME, "Calls that were answered with an error, by kind."),
        Column("left", PLACE, "Calls whose client did not wait for the answer."),
        Column("open_calls", PLACE, "Calls without an answer yet."),
        Column("waiting", PLACE, "Calls that wait for an engine with room."),
        Column("sessions", PLACE, "Open sessions."),
        Column("engines", COUNTS_BY_NAME, "Calls in flight, by engine."),
        Column("unacknowledged", PLACE, "Events that Kafka has not acknowledged, in memory and on disk."),
        Column("spooled", PLACE, "Those of them that wait on disk."),
        Column("holes", PLACE, "Events that are neither on disk nor in Kafka."),
    ),
    key=("source", "time", "id"),
    topic=topics.SDK_STATS,
    clock="logged_at",
)
LAG = Table(
    "lag",
    "Lag of a consumer group, measured every few seconds; not derived from a record.",
    (
        Column("time", TIME, "Time of the measurement."),
        Column("consumer_group", LABEL, "Consumer group."),
        Column("topic", LABEL, "Topic."),
        Column("partition", COUNT, "Partition."),
        Column("records", PLACE, "Offsets between the group's position and the log end, transaction markers included."),
        Column("seconds", NUMBER, "Age of the next record that the group has not processed; 0 if there is none."),
    ),
    key=("consumer_group", "topic", "partition", "time"),
    clock="time",
    keep_ms=14 * 24 * 3600 * 1000,
)

SINKS = Table(
    "sinks",
    "The newest sign of life of each sink, which writes one a second while it reads Kafka; not derived from a record.",
    (
        Column("sink", NAME, "Consumer group and member."),
        Column("time", TIME, "Time of the sign of life."),
    ),
    key=("sink",),
)

PRICES = Table(
    "prices",
    "Prices of models, from the sink's setting prices; not derived from records.",
    (
        Column("model", NAME, "Model, as requests name it: model of events."),
        Column("per_million_prompt", NUMBER, "Price of a million tokens of prompts."),
        Column("per_million_completion", NUMBER, "Price of a million tokens of answers."),
        Column("currency", LABEL, "Currency, such as USD."),
    ),
    key=("model",),
)

TABLES: tuple[Table, ...] = (
    EVENTS,
    STARTS,
    TRAJECTORIES,
    REWARDS,
    SLICE_SUMS,
    TRAINING,
    REJECTED,
    STEPS,
    STEP_MEMBERS,
    WEIGHTS,
    BUDGET,
    APPLIED,
    ALERTS,
    MONITORS,
    DEAD_LETTERS,
    DEAD_LETTER_ACTIONS,
    FEEDBACK,
    SDK_STATS,
    GATEWAY_STATS,
    LAG,
    SINKS,
    PRICES,
)

BY_NAME: dict[str, Table] = {table.name: table for table in TABLES}
"""Every table by its name."""

TABLES_OF_TOPIC: dict[str, tuple[Table, ...]] = {
    topic.name: filled
    for topic in topics.TOPICS
    if (filled := tuple(table for table in TABLES if table.topic == topic and not table.computed_from))
}
"""Topic → the tables that its records fill, without those that are computed from these."""

STORED_TOPICS: tuple[topics.Topic, ...] = tuple(topic for topic in topics.TOPICS if topic.name in TABLES_OF_TOPIC)
"""Topics that have tables: the sink reads them."""
