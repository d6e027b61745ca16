"""``headrace rft``: rejection-sampling fine-tuning on a run's successful trajectories."""

from pathlib import Path

import click

from headrace.deploy.fine_tuning.options import stage_options


@click.command(
    "rft",
    epilog="""\b
Examples:
  headrace rft --model models/base --out models/next
  headrace rft --spec search@1 --run circle --out models/next --set successes.min_reward=0.9 --set successes.per_task=2

Every option: headrace settings fine-tuning. Run the same command again to resume an interrupted stage.
""",
)
@stage_options
def command(file: Path | None, assignments: tuple[str, ...], **given: str | None) -> None:
    """Fine-tune on a run's successful trajectories (rejection sampling).

    Selected is the best attempt at each task, if its reward is high and above its group's mean.
    selection.jsonl next to the model lists the outcome of every trajectory. 5 % of the tasks are held out, and no stage
    trains on them.
    """
    from headrace.deploy.fine_tuning.options import settings_of
    from headrace.deploy.fine_tuning.stages import fine_tune_from_log

    fine_tune_from_log(settings_of("rft", file, assignments, given))
