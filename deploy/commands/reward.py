"""``headrace reward``: list reward specs, show one, check one."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.terminal import CommandGroup, print_json, print_line, print_text

if TYPE_CHECKING:
    from headrace.streams.rewards.finding import Sample
    from headrace.streams.rewards.spec import RewardSpec

_SPEC_HELP = """\b
SPEC: search@1                      a spec of headrace (`headrace reward list`)
      shop, shop@2                  entry point of an installed package, in the group headrace.rewards
      shop.rewards:CHECKOUT         a RewardSpec in a module
      rewards/checkout.py:CHECKOUT  a RewardSpec in a file
"""

_files = click.argument(
    "files", metavar="[FILE]…", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
_agent = click.option("--agent", default="imported", show_default=True, help="Agent name for recorded runs.")


@click.group("reward", cls=CommandGroup)
def command() -> None:
    """List reward specs, show one, and check one on recorded trajectories."""


@command.command("list")
def list_specs() -> None:
    """List all specs: headrace's own, and those of installed packages."""
    from headrace.streams.rewards.registry import OURS, RewardNotLoaded, load_spec, offered

    for label, spec in OURS.items():
        print_line(f"{label:<20} {', '.join(term.name for term in spec.terms)}")
    for entry in offered():
        try:
            spec = load_spec(entry.name)
        except RewardNotLoaded as error:
            print_line(f"{entry.name:<20} cannot be loaded: {error}")
        else:
            names = ", ".join(term.name for term in spec.terms)
            print_line(f"{spec.label:<20} {names}   (entry point {entry.name} = {entry.value})")


@command.command(epilog=_SPEC_HELP)
@click.argument("spec")
def show(spec: str) -> None:
    """Show the components of SPEC: what each measures, and its weight by policy version."""
    from headrace.deploy.rewards.report import spec_text

    print_text(spec_text(_loaded(spec)))


@command.command(epilog=_SPEC_HELP)
@click.argument("spec")
@_files
@_agent
def score(spec: str, files: tuple[Path, ...], agent: str) -> None:
    """Score the trajectories in FILE… with SPEC; prints one JSON object per line."""
    if not files:
        raise click.UsageError("There is nothing to score: give a FILE of recorded runs or trajectories.")

    from headrace.deploy.rewards.other_processes import score_lines

    for line in score_lines(_loaded(spec), _from_files(files, agent)):
        print_json(line)


@command.command(epilog=_SPEC_HELP)
@click.argument("spec")
@_files
@_agent
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
@click.option("--last", metavar="N", type=click.IntRange(1, 100_000), default=1000, show_default=True,
              help="Newest trajectories to read from Kafka.")  # fmt: skip
@click.option("--versions", metavar="N", type=click.IntRange(1), help="Policy versions that the run will publish.")
@click.option("--ms", metavar="MS", type=click.FloatRange(0, min_open=True), default=2.0, show_default=True,
              help="Longest time per trajectory, in milliseconds.")  # fmt: skip
@click.option("--correlation", metavar="R", type=click.FloatRange(0, 1), default=0.8, show_default=True,
              help="Largest |r| between reward and length.")  # fmt: skip
@click.option("--one-process", is_flag=True, help="Skip the two runs in fresh processes; faster.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(
    spec: str,
    files: tuple[Path, ...],
    agent: str,
    kafka: str | None,
    data: str | None,
    last: int,
    versions: int | None,
    ms: float,
    correlation: float,
    one_process: bool,
    as_json: bool,
) -> None:
    """Run SPEC on recorded trajectories and report its errors.

    FILE… contain recorded runs, in the format of `headrace import`, or records of `trajectories`. Without a file the
    newest trajectories are read from Kafka, with their feedback. Judges are not called.

    Errors are: a component raises, returns no number, or differs between two runs, at another time, under another seed
    or in another process; it changes its trajectory, is constant, exceeds its maximum, is slow or follows length; or a
    weight's schedule does not reach its target. The exit status is then 1. Warnings alone leave it at 0.
    """
    from dataclasses import asdict, replace

    from headrace.deploy.rewards.other_processes import differences_elsewhere
    from headrace.deploy.rewards.report import report_text
    from headrace.streams.rewards.check import check as check_spec
    from headrace.streams.rewards.finding import CheckLimits

    loaded = _loaded(spec)
    samples = _from_files(files, agent) if files else _from_kafka(kafka, data, last)
    report = check_spec(loaded, samples, CheckLimits(ms=ms, correlation=correlation, planned_versions=versions))
    if samples and not one_process:
        elsewhere = differences_elsewhere(spec, samples, report.findings)
        report = replace(report, findings=(*elsewhere, *report.findings))
    print_json(asdict(report) | {"wrong": report.wrong}, indent=1) if as_json else print_text(
        report_text(report) + "\n"
    )
    if report.wrong:
        raise SystemExit(1)


def _loaded(text: str) -> "RewardSpec":
    from headrace.deploy.errors import StackError
    from headrace.streams.rewards.registry import RewardNotLoaded, load_spec

    try:
        return load_spec(text)
    except RewardNotLoaded as error:
        raise StackError(f"{error}.") from error


def _from_files(files: tuple[Path, ...], agent: str) -> "list[Sample]":
    from headrace.deploy.rewards.recorded import file_samples

    return file_samples(
        files,
        agent=agent,
        report=lambda file, bad: print_line(f"{file}:{bad.number}: left out: {bad.reason}", err=True),
    )


def _from_kafka(kafka: str | None, data: str | None, last: int) -> "list[Sample]":
    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.rewards.recorded import kafka_samples
    from headrace.deploy.stack.state import address_of

    bootstrap = address_of("kafka", given=kafka, data=data)

    async def read() -> "list[Sample]":
        return await kafka_samples(bootstrap, last)

    try:
        return run_with_kafka(bootstrap, read)
    except LookupError as error:
        raise StackError(f"Kafka at {bootstrap}: {error}.") from error
