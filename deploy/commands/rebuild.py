"""``headrace rebuild``: rebuild a step's batch from the log."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.terminal import print_json, print_line, print_lines

if TYPE_CHECKING:
    from headrace.trainer.provenance.evidence import MissingRecord
    from headrace.trainer.provenance.rebuild import Rebuilt


@click.command("rebuild")
@click.argument("steps", metavar="STEP")
@click.option("--run", metavar="NAME", help="Training run; default: the only run in the log.")
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Write the batch to FILE.safetensors + .json."
)
@click.option(
    "--archive", metavar="URL",
    help="Object store with the archive of what the log no longer has; default: that of the options of archive.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per step.")
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
def command(
    steps: str,
    run: str | None,
    write: Path | None,
    archive: str | None,
    as_json: bool,
    kafka: str | None,
    data: str | None,
) -> None:
    """Rebuild the batch of STEP from the log and compare it with the step's sha256.

    STEP is a number, a range (3-9) or `all`. Only the records that the step refers to by offset are read: groups in
    training, trajectories in trajectories. One batch at a time is held in memory. Records that retention deleted are
    read from the archive (`headrace worker archive`).

    The exit status is 1 if a batch differs, and 3 if a batch cannot be rebuilt because records are expired, unreadable
    or from another release.

    \b
      headrace rebuild 12
      headrace rebuild 12 --write step-12.safetensors
      headrace rebuild all --run demo --json
      headrace rebuild 12 --archive s3://bucket/prefix
    """
    import sys

    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.processes.archive import archive_url
    from headrace.deploy.provenance.rebuilt import as_json as as_object
    from headrace.deploy.provenance.rebuilt import line, page
    from headrace.deploy.stack.state import address_of
    from headrace.schemas.archive.segment import SegmentUnreadable
    from headrace.schemas.objects.unavailable import StoreUnavailable
    from headrace.trainer.provenance.batch_file import write_batch
    from headrace.trainer.provenance.evidence import MissingRecord
    from headrace.trainer.provenance.rebuild import RebuildResult

    first, last = _range(steps)
    if write is not None and (first != last or write.suffix != ".safetensors"):
        raise click.UsageError("--write takes the batch of one step, and a FILE that ends in .safetensors.")
    bootstrap = address_of("kafka", kafka, data)
    archived = archive_url(archive, load_settings(data=data))
    verdicts: set[RebuildResult] = set()

    def report(rebuilt: "Rebuilt | MissingRecord") -> None:
        if isinstance(rebuilt, MissingRecord):
            verdicts.add(RebuildResult.INCOMPLETE)
            print_line(f"The step at {rebuilt.partition}:{rebuilt.offset} of steps: {rebuilt.detail}", err=True)
            return
        verdicts.add(rebuilt.verdict)
        if as_json:
            print_json(as_object(rebuilt))
        else:
            print_lines(page(rebuilt) if first == last else [line(rebuilt)])
        if write is not None and rebuilt.batch is not None:
            print_line(f"written: {write} and {write_batch(rebuilt, write)}", err=True)
        elif write is not None:
            print_line(f"The batch of step {rebuilt.step.step} cannot be rebuilt: {write} is not written.", err=True)

    try:
        run_with_kafka(bootstrap, lambda: _rebuild(bootstrap, archived, run, first, last, report))
    except (LookupError, ValueError, StoreUnavailable, SegmentUnreadable) as error:
        raise StackError(f"{error}.") from error
    if RebuildResult.DIFFERS in verdicts:
        sys.exit(1)
    sys.exit(0 if verdicts <= {RebuildResult.MATCHES} else 3)


def _range(text: str) -> tuple[int, int | None]:
    """Returns the first and last step of ``12``, ``3-9`` or ``all``; the last step of ``all`` is ``None``."""
    if text == "all":
        return 1, None
    first, dash, last = text.partition("-")
    if first.isdecimal() and (last.isdecimal() or not dash):
        found = int(first), int(last or first)
        if 1 <= found[0] <= found[1]:
            return found
    raise click.UsageError(f"STEP is {text!r}: give a number from 1, a range such as 3-9, or all.")


async def _rebuild(
    bootstrap: str,
    archive: str | None,
    run: str | None,
    first: int,
    last: int | None,
    report: "Callable[[Rebuilt | MissingRecord], None]",
) -> None:
    """Rebuild the steps from ``first`` to ``last`` one by one; raises ``StackError`` if there are none."""
    from headrace.deploy.errors import StackError
    from headrace.deploy.provenance.choose_run import chosen_run
    from headrace.trainer.provenance.evidence import MissingRecord
    from headrace.trainer.provenance.log_reader import open_log
    from headrace.trainer.provenance.rebuild import rebuild
    from headrace.trainer.provenance.steps import evidence_for, steps_of

    found = 0
    async with open_log(bootstrap, archive) as steps, open_log(bootstrap, archive) as records:
        run = await chosen_run(records, run)
        async for step in steps_of(steps, run, first, last):
            found += 1
            report(step if isinstance(step, MissingRecord) else rebuild(step, await evidence_for(records, step)))
        if not found:
            newest = max(
                [step.step async for step in steps_of(steps, run) if not isinstance(step, MissingRecord)], default=0
            )
            has = f"its newest step is {newest}" if newest else "it has no steps yet"
            missing = f"step {first}" if first == last else f"step from {first} on"
            raise StackError(f"Run {run!r} has no {missing}: {has}.")
