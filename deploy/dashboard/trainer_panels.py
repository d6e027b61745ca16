"""The panels of the trainer's page: the steps of a run with all their metrics, rejections and alerts.

A chart of metrics has a query of its own, for other clients, but the page draws it from the result of ``steps``.
"""

from headrace.deploy.dashboard.activity_panel import ACTIVITY
from headrace.deploy.dashboard.overview_panels import ALERT_COLUMNS, MAX_LISTED_RUNS
from headrace.deploy.dashboard.panel import OF_RUN as _RUN
from headrace.deploy.dashboard.panel import Axis, Form, Panel, Unit
from headrace.deploy.dashboard.slices import IS_IN_FLIGHT
from headrace.streams.clickhouse.views import latest_rewards
from headrace.trainer.learning.metric_registry import METRICS

MAX_POINTS = 600
"""Most points of a chart: of a longer run only every second, third … step and the newest step are shown."""

_EVERY = f"greatest(1, intDiv((SELECT max(step) FROM steps WHERE {_RUN}), {MAX_POINTS}))"
_SHOWN = (
    f"(SELECT step, time, groups, trajectories, metrics FROM steps FINAL WHERE {_RUN})\n"
    f"        WHERE step % {_EVERY} = 0 OR step = (SELECT max(step) FROM steps WHERE {_RUN})\n"
    "        ORDER BY step, time LIMIT 1 BY step"
)
_STEP = Axis("step", "Step", Unit.STEP)
_NO_STEPS = (
    "No steps yet: the trainer makes a step when it has received enough groups with a gradient. `headrace train --help`"
)


def _chart(
    name: str,
    title: str,
    metrics: dict[str, str],
    about: str = "",
    *,
    form: Form = Form.LINE,
    unit: Unit = Unit.NUMBER,
    wide: bool = False,
    section: str,
) -> Panel:
    """Returns a chart of ``metrics`` (name → label; the empty text: the name) by step, drawn from the panel ``steps``.

    Without ``about`` the registry describes the first metric.
    """
    columns = ", ".join(
        f"if(mapContains(metrics, '{each}'), metrics['{each}'], NULL) AS `metrics.{each}`" for each in metrics
    )
    return Panel(
        name,
        about or METRICS[next(iter(metrics))].about,
        f"\n        SELECT step, {columns}\n        FROM {_SHOWN}\n    ",
        title=title,
        form=form,
        x=_STEP,
        values=tuple(Axis(f"metrics.{each}", label or each.replace("_", " "), unit) for each, label in metrics.items()),
        source="steps",
        section=section,
        wide=wide,
        empty=_NO_STEPS,
    )


LEARNING, DISTANCE, SPEED = "Learning", "Distance from the sampling policies", "Speed"
"""The sections of the page."""

METRIC_CHARTS: tuple[Panel, ...] = (
    _chart(
        "reward",
        "Reward",
        {"rollout_reward_mean": "", "reward_mean": ""},
        "Mean reward of all rollouts since the previous step, and of the trajectories that are trained, in the reward "
        "spec's own unit. Groups without variance are only in the first.",
        section=LEARNING,
        wide=True,
    ),
    _chart(
        "zero_variance_share",
        "Groups without variance",
        {
            "zero_variance_all_success": "all succeed",
            "zero_variance_all_fail": "all fail",
            "zero_variance_all_equal": "all equal",
        },
        "Share of all complete groups that have no reward variance: they were sampled, but are not trained.",
        section=LEARNING,
        unit=Unit.SHARE,
    ),
    _chart("loss", "Loss", {"loss": ""}, section=LEARNING),
    _chart("entropy", "Entropy", {"entropy": ""}, section=LEARNING),
    _chart("grad_norm", "Gradient norm", {"grad_norm": ""}, section=LEARNING),
    _chart("learning_rate", "Learning rate", {"learning_rate": ""}, section=LEARNING),
    _chart(
        "ratio",
        "Importance ratio",
        {"importance_ratio_max": "", "importance_ratio_mean": ""},
        "ρ = π / π_behaviour of a token: 1 on-policy.",
        section=DISTANCE,
    ),
    _chart("ess", "Effective sample size", {"effective_sample_size": ""}, section=DISTANCE, unit=Unit.SHARE),
    _chart(
        "kl",
        "KL",
        {"kl_k1": "", "kl_k3": "", "kl_reference": ""},
        "From the sampling policies (k1 and k3), and from the reference policy if it is penalised.",
        section=DISTANCE,
    ),
    _chart("mismatch", "Trainer against engine", {"mismatch_kl": ""}, section=DISTANCE),
    _chart(
        "clipped",
        "Clipped and truncated tokens",
        {"clip_fraction_low": "", "clip_fraction_high": "", "correction_truncated": ""},
        "Share of the kept tokens that the loss clips or its correction truncates.",
        section=DISTANCE,
        unit=Unit.SHARE,
    ),
    _chart(
        "staleness",
        "Staleness",
        {"staleness_max": "", "staleness_p95": "", "staleness_p50": ""},
        "Versions between sampling and training, over tokens.",
        section=DISTANCE,
        unit=Unit.COUNT,
    ),
    _chart(
        "ages",
        "Tokens by age",
        {
            "tokens_age_9_up": "9 and more",
            "tokens_age_5_8": "5 to 8",
            "tokens_age_3_4": "3 to 4",
            "tokens_age_2": "2",
            "tokens_age_1": "1 version",
            "tokens_age_0": "fresh",
            "tokens_age_unknown": "unknown",
        },
        "Trained tokens by age: how many versions ago they were sampled.",
        form=Form.BARS,
        unit=Unit.TOKENS,
        section=DISTANCE,
        wide=True,
    ),
    _chart(
        "seconds",
        "Seconds of a step",
        {
            "seconds_wait": "wait",
            "seconds_resolve": "resolve",
            "seconds_train": "train",
            "seconds_save": "save",
            "seconds_publish": "publish",
        },
        "Waiting for groups, resolving them, training; saving and publishing are those of the previous version.",
        form=Form.BARS,
        unit=Unit.SECONDS,
        section=SPEED,
        wide=True,
    ),
    _chart("speed", "Tokens per second of training", {"tokens_per_second": ""}, section=SPEED, unit=Unit.TOKENS),
    _chart(
        "tokens",
        "Tokens per step",
        {"tokens_read": "", "tokens_trained": ""},
        "All tokens of the batch, and the sampled tokens among them.",
        section=SPEED,
        unit=Unit.TOKENS,
    ),
)
"""The charts of metrics, in the order of the page."""

TRAINER_PANELS: tuple[Panel, ...] = (
    Panel(
        "runs",
        "Runs with training steps, the most recently active first.",
        f"""
        SELECT run, max(step) AS steps, toUnixTimestamp64Milli(max(time)) AS last_ms, count() OVER () AS all_runs
        FROM steps GROUP BY run ORDER BY last_ms DESC, run LIMIT {MAX_LISTED_RUNS}
        """,
        title="Runs",
        form=Form.DATA,
        values=(
            Axis("run", "Run", Unit.TEXT),
            Axis("steps", "Steps", Unit.COUNT),
            Axis("last_ms", "Last step", Unit.TIME),
        ),
    ),
    Panel(
        "now",
        "The run's current state. groups_waiting: groups that were formed, but neither trained nor rejected yet. "
        "groups_in_flight: those that were started and have trajectories without a fate. groups_granted: "
        "how many groups the trainer's budget allows in flight, null if it published no budget. reward_maximum: the "
        "largest possible reward, null if the run's rewards have several.",
        f"""
        SELECT
            (SELECT max(step) FROM steps WHERE {_RUN}) AS step,
            (SELECT max(version) FROM weights WHERE {_RUN}) AS published,
            (SELECT toUnixTimestamp64Milli(max(time)) FROM steps WHERE {_RUN}) AS last_ms,
            (SELECT uniqExact(id) FROM alerts WHERE {_RUN} AND kind = 'step_skipped') AS skipped,
            (SELECT uniqExact(group_id) FROM training WHERE {_RUN} AND {IS_IN_FLIGHT}) AS groups_waiting,
            (SELECT uniqExact(group_id) FROM starts
             WHERE group_id != '' AND {_RUN} AND purpose IN ('', 'train') AND {IS_IN_FLIGHT}) AS groups_in_flight,
            (SELECT if(count() = 0, NULL, argMax(max_groups, (version, time))) FROM budget WHERE {_RUN})
            AS groups_granted,
            (SELECT argMax(groups_per_step, (version, time)) FROM budget WHERE {_RUN}) AS groups_per_step,
            (SELECT if(min(maximum) = max(maximum), max(maximum), NULL)
             FROM ({latest_rewards(f"{_RUN} AND purpose = 'train'")})) AS reward_maximum
        """,
        title="Figures",
        form=Form.FIGURES,
        values=(
            Axis("step", "Step", Unit.STEP),
            Axis("published", "Version published", Unit.VERSION),
            Axis("last_ms", "Last step", Unit.TIME),
            Axis("skipped", "Steps skipped", Unit.COUNT),
            Axis("groups_waiting", "Groups waiting", Unit.COUNT),
            Axis("groups_in_flight", "Groups in flight", Unit.COUNT),
            Axis("groups_granted", "Groups granted", Unit.COUNT),
            Axis("reward_maximum", "Largest possible reward", Unit.NUMBER),
        ),
    ),
    Panel(
        "steps",
        "Each step with its metrics, under the names of METRICS.md (`headrace metrics`).",
        f"""
        SELECT step, toUnixTimestamp64Milli(time) AS ms, groups, trajectories, metrics
        FROM {_SHOWN}
        """,
        title="All metrics of the newest step",
        form=Form.TABLE,
        values=(
            _STEP,
            Axis("ms", "Time", Unit.TIME),
            Axis("groups", "Groups", Unit.COUNT),
            Axis("trajectories", "Trajectories", Unit.COUNT),
        ),
        wide=True,
        empty="No steps yet.",
    ),
    *METRIC_CHARTS,
    Panel(
        "rejected",
        "Trajectories that the trainer rejected by reason: of groups that are stale, cannot be trained, or were in a "
        "skipped step.",
        f"""
        SELECT reason, uniqExact(trajectory_id) AS trajectories FROM rejected FINAL
        WHERE {_RUN} AND stage = 'admission' GROUP BY reason ORDER BY trajectories DESC, reason
        """,
        title="Rejected by the trainer",
        form=Form.TABLE,
        values=(Axis("reason", "Reason", Unit.TEXT), Axis("trajectories", "Trajectories", Unit.COUNT)),
        empty="None.",
    ),
    Panel(
        "alerts",
        "The trainer's alerts, skipped steps included, newest first.",
        f"""
        SELECT toUnixTimestamp64Milli(time) AS ms, part, kind, severity, message
        FROM alerts FINAL WHERE {_RUN} AND part = 'trainer' ORDER BY time DESC, id LIMIT 20
        """,
        title="Alerts and skipped steps",
        form=Form.TABLE,
        values=ALERT_COLUMNS,
        empty="No alerts.",
    ),
    ACTIVITY,
)
