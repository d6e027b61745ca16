"""The record of a step: the trained data, the hash of the settings, and the metrics. Pure."""

import math
from collections.abc import Mapping, Sequence

from headrace.schemas.records.step import BatchRecipe, Step
from headrace.trainer.batches.batch import AdmittedGroup, Batch
from headrace.trainer.learning.metrics import counts_by_age
from headrace.trainer.learning.rollouts import rollout_metrics
from headrace.trainer.progress.pace import Phase
from headrace.trainer.steps.gather import Gathered


def make_step(
    version: int,
    groups: Sequence[AdmittedGroup],
    batch: Batch,
    metrics: Mapping[str, float],
    *,
    run: str,
    config_sha256: str,
    recipe: BatchRecipe,
) -> Step:
    """Returns the record of the step that made policy ``version``.

    It was trained on ``batch``, made from ``groups`` by ``recipe``, with the settings of ``run`` whose hash is
    ``config_sha256``. Metrics that are not finite (an overflow of a ratio) are left out, because records hold only
    finite numbers; alarms are computed before.
    """
    return Step(
        run=run,
        step=version,
        version=version,
        groups=[group.as_trained() for group in groups],
        config_sha256=config_sha256,
        data_sha256=batch.sha256(),
        recipe=recipe,
        array_sha256=batch.array_sha256(),
        metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
    )


def loop_metrics(
    gathered: Gathered,
    learnt: Mapping[str, float],
    *,
    train_s: float,
    since_step_s: float,
    before_s: Mapping[Phase, float],
) -> dict[str, float]:
    """Returns the loop's metrics of a step: seconds by phase, tokens per second, members by age, all rollouts.

    ``train_s``: seconds of its training; ``since_step_s``: seconds since the previous step was announced, whose phases
    took ``before_s``. A step's record is durable before its version is saved and published: it holds these seconds of
    the previous version, and its own are in the next record.
    """
    names = {"seconds_save": Phase.SAVING, "seconds_publish": Phase.PUBLISHING}
    after = {name: before_s[phase] for name, phase in names.items() if phase in before_s}
    return {
        "seconds_step": sum(after.values()) + since_step_s,
        **after,
        "seconds_wait": gathered.wait_s,
        "seconds_resolve": gathered.resolve_s,
        "seconds_train": train_s,
        "tokens_per_second": learnt["tokens_read"] / max(train_s, 1e-9),
        "rejected": float(len(gathered.rejected_ages)),
        "records_lost": float(gathered.lost),
        **rollout_metrics(gathered.rollouts),
        **counts_by_age("admitted", gathered.admitted_ages),
        **counts_by_age("rejected", gathered.rejected_ages),
    }
