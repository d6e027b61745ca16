"""``headrace reward``: what rewards there are, what one is made of, and what is wrong with it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.terminal import tell, tell_json, tell_page

if TYPE_CHECKING:
    from headrace.streams.rewards.finding import Sample
    from headrace.streams.rewards.spec import RewardSpec

_SPEC_HELP = """\b
SPEC: search@1                      one of ours (`headrace reward list`)
      shop, shop@2                  entry point of an installed package, in the group headrace.rewards
      shop.rewards:CHECKOUT         a RewardSpec in a module
      rewards/checkout.py:CHECKOUT  a RewardSpec in a file
"""

_files = click.argument(
    "files", metavar="[FILE]…", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
_agent = click.option("--agent", default="imported", show_default=True, help="Agent of recorded runs.")


@click.group("reward")
def command() -> None:
    """Reward specs: list them, look at one, and check it on recorded trajectories."""


@command.command("list")
def list_specs() -> None:
    """Every spec there is: ours, and those that installed packages offer."""
    from headrace.streams.rewards.registry import OURS, RewardNotLoaded, load_spec, offered

    for label, spec in OURS.items():
        tell(f"{label:<20} {', '.join(term.name for term in spec.terms)}")
    for entry in offered():
        try:
            spec = load_spec(entry.name)
        except RewardNotLoaded as error:
            tell(f"{entry.name:<20} cannot be loaded: {error}")
        else:
            names = ", ".join(term.name for term in spec.terms)
            tell(f"{spec.label:<20} {names}   (entry point {entry.name} = {entry.value})")


@command.command(epilog=_SPEC_HELP)
@click.argument("spec")
def show(spec: str) -> None:
    """Components of SPEC, what each measures, and its weight by policy version."""
    from headrace.deploy.rewards.report import spec_text

    tell_page(spec_text(_loaded(spec)))


@command.command(epilog=_SPEC_HELP)
@click.argument("spec")
@_files
@_agent
def score(spec: str, files: tuple[Path, ...], agent: str) -> None:
    """Score the trajectories in FILE… with SPEC: a JSON object a line."""
    if not files:
        raise click.UsageError("Name a FILE of recorded runs or trajectories: there is nothing to score.")

    from headrace.deploy.rewards.other_processes import score_lines

    for line in score_lines(_loaded(spec), _from_files(files, agent)):
        tell_json(line)


@command.command(epilog=_SPEC_HELP)
@click.argument("spec")
@_files
@_agent
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
@click.option("--last", metavar="N", type=click.IntRange(1, 100_000), default=1000, show_default=True,
              help="Trajectories to read from Kafka, the newest.")  # fmt: skip
@click.option("--versions", metavar="N", type=click.IntRange(1), help="Policy versions that the run will make.")
@click.option("--ms", metavar="MS", type=click.FloatRange(0, min_open=True), default=2.0, show_default=True,
              help="Longest time a trajectory may take.")  # fmt: skip
@click.option("--correlation", metavar="R", type=click.FloatRange(0, 1), default=0.8, show_default=True,
              help="Largest |r| between reward and length.")  # fmt: skip
@click.option("--one-process", is_flag=True, help="Leave out the two runs in fresh processes: faster.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
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
    """Run SPEC on recorded trajectories and say what is wrong with it.

    FILE… hold recorded runs, as `headrace import` takes them, or records of `trajectories`; without a file, the newest
    trajectories of a Kafka are taken, with the feedback on them. Judges are not asked.

    Wrong is what raises, is no number, differs between two runs, at another time, under another seed or in another
    process; what changes its trajectory, is constant, over its maximum, slow or follows length; and a weight that does
    not get where it plans to. The exit status is then 1. What is only worth a look leaves it at 0.
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
    tell_json(asdict(report) | {"wrong": report.wrong}, indent=1) if as_json else tell_page(report_text(report) + "\n")
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
        report=lambda file, bad: tell(f"{file}:{bad.number}: left out: {bad.reason}", err=True),
    )


def _from_kafka(kafka: str | None, data: str | None, last: int) -> "list[Sample]":
    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.ask import ask_kafka
    from headrace.deploy.rewards.recorded import kafka_samples
    from headrace.deploy.stack.state import address_of

    bootstrap = address_of("kafka", given=kafka, data=data)

    async def read() -> "list[Sample]":
        return await kafka_samples(bootstrap, last)

    try:
        return ask_kafka(bootstrap, read)
    except LookupError as error:
        raise StackError(f"Kafka at {bootstrap}: {error}.") from error
