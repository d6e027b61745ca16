"""``headrace sft``: warm a base model up on what the log holds, by Context-1's filter."""

from pathlib import Path

import click

from headrace.deploy.fine_tuning.options import stage_options


@click.command(
    "sft",
    epilog="""\b
Examples:
  headrace replay recalls --rewards search@3           score history with both recalls, which the filter asks for
  headrace sft --replay recalls --out models/warm      choose and imitate
  headrace sft --replay recalls --out models/warm --set context1.per_task=4 --set training.steps=500

Every option: headrace settings fine-tuning. An interrupted stage goes on when it is started again.
""",
)
@stage_options
def command(file: Path | None, assignments: tuple[str, ...], **given: str | None) -> None:
    """Warm a base model up: imitate trajectories that Context-1's filter keeps.

    \b
    trajectory recall > 0.50 and answer recall > 0.40   kept in full
    lower                                               kept at a rate that diminishes
    no recall at all                                    negatives, at most 5 % of what is kept
    trajectory recall far above the answer's            dropped, and so is what is malformed
    at most one of a task                               the best

    What became of every trajectory stands beside the model, in selection.jsonl; 5 % of the tasks are held out, and no
    stage ever trains on them.
    """
    from headrace.deploy.fine_tuning.options import settings_of
    from headrace.deploy.fine_tuning.stages import fine_tune_from_log

    fine_tune_from_log(settings_of("sft", file, assignments, given))
