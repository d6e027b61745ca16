"""``headrace sft``: warm up a base model on trajectories from the log, selected by Context-1's filter."""

from pathlib import Path

import click

from headrace.deploy.fine_tuning.options import stage_options


@click.command(
    "sft",
    epilog="""\b
Examples:
  headrace replay recalls --rewards search@3           score history with both recalls, which the filter needs
  headrace sft --replay recalls --out models/warm      select and fine-tune
  headrace sft --replay recalls --out models/warm --set context1.per_task=4 --set training.steps=500

Every option: headrace settings fine-tuning. Run the same command again to resume an interrupted stage.
""",
)
@stage_options
def command(file: Path | None, assignments: tuple[str, ...], **given: str | None) -> None:
    """Warm up a base model: fine-tune on the trajectories that Context-1's filter keeps.

    \b
    trajectory recall > 0.50 and answer recall > 0.40   all kept
    lower recall                                        kept at a rate that falls with recall
    no recall                                           kept as negatives, at most 5 % of what is kept
    trajectory recall far above the answer's            dropped
    malformed                                           dropped
    several of one task                                 only the best kept

    selection.jsonl next to the model lists the outcome of every trajectory. 5 % of the tasks are held out, and no stage
    trains on them.
    """
    from headrace.deploy.fine_tuning.options import settings_of
    from headrace.deploy.fine_tuning.stages import fine_tune_from_log

    fine_tune_from_log(settings_of("sft", file, assignments, given))
