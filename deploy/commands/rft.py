"""``headrace rft``: rejection sampling: successes of reinforcement become supervised data."""

from pathlib import Path

import click

from headrace.deploy.fine_tuning.options import stage_options


@click.command(
    "rft",
    epilog="""\b
Examples:
  headrace rft --model models/base --out models/next
  headrace rft --spec search@1 --run circle --out models/next --set successes.min_reward=0.9 --set successes.per_task=2

Every option: headrace settings fine-tuning. An interrupted stage goes on when it is started again.
""",
)
@stage_options
def command(file: Path | None, assignments: tuple[str, ...], **given: str | None) -> None:
    """Imitate successes: of each task the best attempt whose reward is high, and above its group's mean.

    What became of every trajectory stands beside the model, in selection.jsonl; 5 % of the tasks are held out, and no
    stage ever trains on them.
    """
    from headrace.deploy.fine_tuning.options import settings_of
    from headrace.deploy.fine_tuning.stages import fine_tune_from_log

    fine_tune_from_log(settings_of("rft", file, assignments, given))
