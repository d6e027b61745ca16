"""Fills the tables with a run: rising rewards, dropped groups, served weights."""

import json
import random
import time
from collections import defaultdict

from clickhouse_connect.driver.client import Client

from headrace.streams.clickhouse.columns import Row, Table, arrow_table
from headrace.streams.clickhouse.database import insert
from headrace.streams.clickhouse.schema import compute_missing, ensure_tables
from headrace.streams.clickhouse.tables import (
    ALERTS,
    APPLIED,
    BUDGET,
    EVENTS,
    LAG,
    REJECTED,
    REWARDS,
    STEP_MEMBERS,
    STEPS,
    TRAINING,
    TRAJECTORIES,
    WEIGHTS,
)

COMPONENTS = {"f_beta": 0.7, "trajectory_recall": 0.3, "answer_found": 1.0, "prune_penalty": -1.0, "turn_penalty": -1.0}


def step_metrics(rng: random.Random, skill: float, step: int) -> list[tuple[str, float]]:
    """Returns a step's metrics, as of a trainer that learns and drifts slightly off-policy."""
    drift = rng.uniform(0.6, 1.4) * (0.01 + 0.002 * step)
    return [
        ("reward_mean", 2 * skill + rng.gauss(0, 0.03)), ("loss", rng.gauss(-0.02, 0.01)),
        ("rollout_reward_mean", 2 * skill), ("zero_variance_all_success", skill / 2), ("zero_variance_all_fail", 0.1),
        ("entropy", 1.6 - skill), ("grad_norm", rng.uniform(0.5, 1.5)), ("learning_rate", 1e-3),
        ("importance_ratio_mean", 1 + rng.gauss(0, 0.01)), ("importance_ratio_max", 1 + 40 * drift),
        ("effective_sample_size", max(0.05, 1 - 8 * drift)), ("chi2", 2 * drift),
        ("kl_k1", drift), ("kl_k3", 1.2 * drift),
        ("mismatch_kl", rng.uniform(0.5, 2) * 1e-6), ("mismatch_logprob_max", rng.uniform(1, 4) * 1e-5),
        ("clip_fraction_low", 0.0), ("clip_fraction_high", drift / 2), ("tokens_kept", 3000.0),
        ("staleness_p50", 0.0), ("staleness_p95", 1.0), ("staleness_max", 1.0 + (step % 5 == 0)),
        ("tokens_age_0", 2500.0), ("tokens_age_1", 500.0),
        ("tokens_trained", 3000.0 + rng.randrange(400)), ("tokens_read", 9000.0 + rng.randrange(900)),
        ("tokens_per_second", rng.uniform(5000, 6000)), ("seconds_wait", rng.uniform(0.5, 4)), ("seconds_resolve", 0.1),
        ("seconds_train", rng.uniform(1.4, 1.9)), ("seconds_save", 0.15), ("seconds_publish", rng.uniform(0.1, 0.3)),
    ]  # fmt: skip


def seed_run(client: Client, run: str, *, versions: int = 40, groups: int = 8, size: int = 8, seed: int = 0) -> None:
    """Write a run of ``versions`` policy versions and an imported data set to the tables."""
    ensure_tables(client)
    rng = random.Random(seed)
    now = time.time_ns() // 1_000_000
    earlier = now - 120_000  # otherwise events would leave the last minute during a test
    rows: dict[str, tuple[Table, list[Row]]] = {}
    serial = defaultdict[str, int](int)

    def add(table: Table, **row: object) -> None:
        serial[table.name] += 1
        place = {"id_sent": f"{run}-{table.name}-{serial[table.name]}", "offset": serial[table.name]}
        full = row if table is LAG else {"time": now, "logged_at": now, **place, **row}
        rows.setdefault(table.name, (table, []))[1].append(full)

    def trajectory(name: str, version: int | None, skill: float, **labels: object) -> float:
        value = {component: min(max(rng.gauss(skill, 0.25), 0), 1) for component in COMPONENTS}
        value["prune_penalty"], value["turn_penalty"] = 0.0, rng.choice((0, 0, 0.1))
        total = max(sum(value[component] * weight for component, weight in COMPONENTS.items()), 0)
        common = {"trajectory_id": name, "run": run, **labels}
        evaluation, source = common.pop("evaluation", ""), common.pop("source", "")
        started = {"type": "headrace.trajectory.started.v1", "payload": json.dumps({"purpose": labels["purpose"]})}
        add(
            EVENTS,
            **started,
            time=earlier,
            trajectory_id=name,
            started_run=run,
            started_purpose=labels["purpose"],
            started_group_id=labels.get("group_id", ""),
        )
        task = json.dumps({"source": source} if source else {})
        add(TRAJECTORIES, **common, evaluation=evaluation, oldest_version=version, task=task, task_source=source)
        add(
            REWARDS,
            **common,
            spec="search@1",
            total=total,
            maximum=2.0,
            normalised=total / 2,
            components=list(value.items()),
            weights=list(COMPONENTS.items()),
            oldest_version=version,
            ended_at=now,
        )
        return total

    for version in range(versions):
        skill = 0.25 + 0.6 * (1 - 0.93**version)
        at = now - (versions - version) * 9_000
        add(WEIGHTS, time=at, run=run, version=version, step=version)
        add(APPLIED, time=at + 400, run=run, engine="vllm", version=version, swap_s=0.12, canary_max_error=2e-6)
        for number in range(groups):
            group = f"{run}-{version}-{number}"
            names = [f"{group}-{member}" for member in range(size)]
            for name in names:
                source = ("wide", "deep")[number % 2]
                trajectory(name, version, skill, group_id=group, purpose="train", source=source)
            if rng.random() < 0.25 + 0.5 * skill * version / versions:
                succeeded = rng.random() < skill
                reason = f"zero_variance_all_{'success' if succeeded else 'fail'}"
                for name in names:
                    labels = {"run": run, "group_id": group, "policy_version": version}
                    add(REJECTED, trajectory_id=name, stage="group", reason=reason, **labels)
                continue
            for name in names:
                add(TRAINING, run=run, group_id=group, trajectory_id=name, oldest_version=version)
                if version < versions - 1:
                    step = version + 1 + rng.choice((0, 0, 0, 1))
                    add(STEP_MEMBERS, run=run, step=step, version=step, group_id=group, trajectory_id=name)
        if version:
            add(
                STEPS,
                time=at,
                run=run,
                step=version,
                version=version,
                groups=groups,
                trajectories=groups * size,
                metrics=step_metrics(rng, skill, version),
            )
        granted = {"groups_per_step": groups, "max_steps_ahead": 1, "max_groups": 2 * groups}
        add(BUDGET, time=at, run=run, version=version, **granted)
        if version % 13 == 0:
            for label in ("greedy", "sampled"):
                for number in range(16):
                    name = f"{run}-{label}-{version}-{number}"
                    trajectory(name, version, skill, purpose="evaluate", evaluation=label)
                    add(REJECTED, trajectory_id=name, stage="group", reason="evaluation", run=run)
    for number in range(5):
        trajectory(f"{run}-open-{number}", versions - 1, 0.5, group_id=f"{run}-open", purpose="train")
    for tick in range(0, 420, 5):  # well within the panel's ten minutes, so that nothing drops out during a test
        for name, mean in (("assemble", 40), ("headrace-score", 12), ("headrace-group", 5), ("sink", 90)):
            lag = max(int(rng.gauss(mean, mean / 3)), 0)
            row = {"time": now - tick * 1000, "consumer_group": name, "topic": "events", "partition": 0, "records": lag}
            add(LAG, **row, seconds=lag / 50)
    skip = f"the step after version {versions // 2} was skipped (1 in a row) and its trajectories rejected as diverged"
    add(ALERTS, run=run, part="trainer", kind="step_skipped", severity="warning", message=skip)
    for number in range(3):
        name = f"{run}-0-0-{number}-late"
        add(EVENTS, type="headrace.trajectory.started.v1", time=earlier, trajectory_id=name, started_run=run)
        add(REJECTED, trajectory_id=name, stage="admission", reason="stale", run=run)
    alert = "The engine's log-probabilities differ from version 7's by 0.9: it went back to version 6."
    add(ALERTS, run=run, part="follower", kind="canary_mismatch", severity="critical", message=alert)
    for table, lines in rows.values():
        insert(client, table, arrow_table(table, lines), f"seed:{run}:{table.name}")
    compute_missing(client)


def seed_start(client: Client, run: str) -> None:
    """Write the start of a trajectory and nothing else of a run."""
    ensure_tables(client)
    now = time.time_ns() // 1_000_000 - 120_000
    started = {"type": "headrace.trajectory.started.v1", "payload": json.dumps({"purpose": "train"})}
    row = {"time": now, "logged_at": now, "offset": 0, "id_sent": f"{run}-start", "trajectory_id": f"{run}-t"}
    row |= {**started, "started_run": run, "started_purpose": "train"}
    insert(client, EVENTS, arrow_table(EVENTS, [row]), f"seed:{run}:start")
    compute_missing(client)
