"""The record of a step: exactly what was trained, under which settings, and what came of it. Pure."""

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
    """The record of the step that made policy ``version`` of ``batch``, which was made of ``groups`` by
    ``recipe``, under the settings of ``run`` whose hash is ``config_sha256``.

    A metric that is not finite (a ratio that overflowed) is left out: no record holds such a number. Alarms see it.
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
    """What the loop measures around a step: where the seconds went, tokens a second, members by age, all
    rollouts.

    ``train_s``: seconds of its training; ``since_step_s``: since the step before was announced, whose phases took
    ``before_s``. A step's record is durable before its version is saved and published: it has the seconds of the
    version before, and its own stand in the next one's.
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
