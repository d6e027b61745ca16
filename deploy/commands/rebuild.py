"""``headrace rebuild``: a step's batch, made again from the log."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.terminal import tell as say
from headrace.deploy.terminal import tell_json, tell_lines

if TYPE_CHECKING:
    from headrace.trainer.provenance.evidence import MissingRecord
    from headrace.trainer.provenance.rebuild import Rebuilt


@click.command("rebuild")
@click.argument("steps", metavar="STEP")
@click.option("--run", metavar="NAME", help="Training run; default: the only one that the log knows.")
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="The batch, as FILE.safetensors + .json."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON, an object a line.")
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
def command(
    steps: str, run: str | None, write: Path | None, as_json: bool, kafka: str | None, data: str | None
) -> None:
    """Make the batch of STEP again from the records that the step names, and compare it with the step's sha256.

    STEP is a number, a range (3-9) or `all`. Read is what the step points at, by offset: groups in training,
    trajectories in trajectories. Memory is that of one batch, however many steps are asked for.

    Exit status 1 where a batch differs, 3 where one cannot be rebuilt: records are past their retention, unreadable,
    or made by another release.

    \b
      headrace rebuild 12
      headrace rebuild 12 --write step-12.safetensors
      headrace rebuild all --run demo --json
    """
    import sys

    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.ask import ask_kafka
    from headrace.deploy.provenance.rebuilt import as_json as as_object
    from headrace.deploy.provenance.rebuilt import line, page
    from headrace.deploy.stack.state import address_of
    from headrace.trainer.provenance.batch_file import write_batch
    from headrace.trainer.provenance.evidence import MissingRecord
    from headrace.trainer.provenance.rebuild import RebuildResult

    first, last = _range(steps)
    if write is not None and (first != last or write.suffix != ".safetensors"):
        raise click.UsageError("--write takes the batch of one step, and a FILE that ends in .safetensors.")
    bootstrap = address_of("kafka", kafka, data)
    verdicts: set[RebuildResult] = set()

    def report(rebuilt: "Rebuilt | MissingRecord") -> None:
        if isinstance(rebuilt, MissingRecord):
            verdicts.add(RebuildResult.INCOMPLETE)
            say(f"A step stands at steps {rebuilt.partition}:{rebuilt.offset}, and {rebuilt.detail}", err=True)
            return
        verdicts.add(rebuilt.verdict)
        if as_json:
            tell_json(as_object(rebuilt))
        else:
            tell_lines(page(rebuilt) if first == last else [line(rebuilt)])
        if write is not None and rebuilt.batch is not None:
            say(f"written: {write} and {write_batch(rebuilt, write)}", err=True)
        elif write is not None:
            say(f"Step {rebuilt.step.step} gives no batch: {write} is not written.", err=True)

    try:
        ask_kafka(bootstrap, lambda: _rebuild(bootstrap, run, first, last, report))
    except LookupError as error:
        raise StackError(f"{error}.") from error
    if RebuildResult.DIFFERS in verdicts:
        sys.exit(1)
    sys.exit(0 if verdicts <= {RebuildResult.MATCHES} else 3)


def _range(text: str) -> tuple[int, int | None]:
    """First and last step of ``12``, ``3-9`` or ``all``; the last of all is ``None``."""
    if text == "all":
        return 1, None
    first, dash, last = text.partition("-")
    if first.isdecimal() and (last.isdecimal() or not dash):
        found = int(first), int(last or first)
        if 1 <= found[0] <= found[1]:
            return found
    raise click.UsageError(f"STEP is {text!r}: give a number from 1, a range as 3-9, or all.")


async def _rebuild(
    bootstrap: str, run: str | None, first: int, last: int | None, report: "Callable[[Rebuilt | MissingRecord], None]"
) -> None:
    """Rebuild the steps from ``first`` to ``last`` one by one; raises ``StackError`` where there is none."""
    from headrace.deploy.errors import StackError
    from headrace.deploy.provenance.run import chosen_run
    from headrace.trainer.provenance.evidence import MissingRecord
    from headrace.trainer.provenance.log_reader import open_log
    from headrace.trainer.provenance.rebuild import rebuild
    from headrace.trainer.provenance.steps import evidence_for, steps_of

    found = 0
    async with open_log(bootstrap) as steps, open_log(bootstrap) as records:
        run = await chosen_run(records, run)
        async for step in steps_of(steps, run, first, last):
            found += 1
            report(step if isinstance(step, MissingRecord) else rebuild(step, await evidence_for(records, step)))
        if not found:
            newest = max(
                [step.step async for step in steps_of(steps, run) if not isinstance(step, MissingRecord)], default=0
            )
            has = f"its newest is {newest}" if newest else "it has none yet"
            asked = f"step {first}" if first == last else f"step from {first} on"
            raise StackError(f"Run {run!r} has no {asked}: {has}.")
