"""``headrace lineage``: from a version back to its training data, or from an event forward to the versions it is in."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.picture_file import check_picture
from headrace.deploy.tail.shortened_ids import whole_id
from headrace.deploy.terminal import print_json, print_line, print_lines

if TYPE_CHECKING:
    from headrace.deploy.transcript.page import Line
    from headrace.deploy.transcript.record_text import RecordText
    from headrace.trainer.provenance.contributions import Contribution
    from headrace.trainer.provenance.log_reader import LogReader
    from headrace.trainer.provenance.trace import Trace
    from headrace.trainer.provenance.version_lineage import VersionLineage


_PORTION = 16
"""Trajectories that are read together for their texts."""


@click.command("lineage")
@click.option("--version", type=click.IntRange(min=0), metavar="V", help="Back: what this version was trained on.")
@click.option("--trajectory", metavar="ID", callback=whole_id, help="Forward: what became of this trajectory.")
@click.option("--event", metavar="ID", callback=whole_id, help="Forward: what became of the event with this ce_id.")
@click.option("--run", metavar="NAME", help="Run of --version; default: the only run in the log.")
@click.option("--members", is_flag=True, help="With --version: print each trajectory that it was trained on.")
@click.option(
    "--text",
    is_flag=True,
    help="Print what the model read and said, at most 40 lines of each trajectory; with --version needs --members.",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="For --text: folder of the model, or its tokenizer.json; default: what the run's trainer published.",
)
@click.option("--top", type=click.IntRange(min=1), default=8, show_default=True, help="Values and steps to show.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it to FILE.svg, .png or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --members one object per line.")
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
def command(
    version: int | None,
    trajectory: str | None,
    event: str | None,
    run: str | None,
    members: bool,
    text: bool,
    tokenizer: Path | None,
    top: int,
    picture: Path | None,
    as_json: bool,
    kafka: str | None,
    data: str | None,
) -> None:
    """Trace a version back to its training data, or an event forward to its versions.

    \b
      headrace lineage --version 12                 what it was trained on, with shares, over its whole ancestry
      headrace lineage --version 12 --members       each trajectory that it was trained on
      headrace lineage --version 12 --members --text    … with its text
      headrace lineage --trajectory 019f…           reward, group, step, versions; or why it was rejected
      headrace lineage --event 019f… --picture p.svg

    A link whose record is missing is shown with the reason: expired, deleted or unreadable. Kafka has no index of
    record ids, so --event scans `events`: from the time in the id if it is a UUIDv7, otherwise from the start; with
    --trajectory it scans that trajectory's partition first. Memory use is one row per step and one entry per task; with
    --members --text one entry per trajectory. `headrace show ID` prints a trajectory whole.
    """

    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.stack.state import address_of

    if (version is None) == (trajectory is None and event is None):
        raise click.UsageError("Give --version, or --trajectory, or --event.")
    if (run is not None or members) and version is None:
        raise click.UsageError("--run and --members need --version.")
    if (text and version is not None and not members) or (tokenizer is not None and not text):
        raise click.UsageError("With --version, --text needs --members; --tokenizer needs --text.")
    if picture is not None:
        check_picture(picture)
    texts = _Texts(tokenizer, data) if text else None
    bootstrap = address_of("kafka", kafka, data)
    try:
        if version is not None:
            lineage = run_with_kafka(bootstrap, lambda: _version(bootstrap, run, version, members, as_json, texts))
            if not members:
                _print_version(lineage, top, as_json)
            if picture is not None:
                _draw(lineage, picture)
        else:
            trace, said = run_with_kafka(bootstrap, lambda: _trace(bootstrap, trajectory, event, texts))
            _print_trace(trace, as_json, said)
            if picture is not None:
                _draw(trace, picture)
    except (LookupError, ValueError) as error:
        raise StackError(f"{error}.") from error


@dataclass(frozen=True, slots=True)
class _Texts:
    """Where the tokenizer for texts is."""

    tokenizer: Path | None
    """The one that was named, if any."""
    data: str | None
    """Data folder of the stack, whose object store has the one that the trainer published."""

    def of(self, log: "LogReader", run: str | None) -> "RecordText":
        """Returns what makes texts of records, read through ``log``."""
        from headrace.deploy.configuration.settings import load_settings
        from headrace.deploy.transcript.log_decoders import LogDecoders
        from headrace.deploy.transcript.record_text import RecordText

        return RecordText(log, LogDecoders(log, load_settings(data=self.data).objects, self.tokenizer), run)


async def _version(
    bootstrap: str, run: str | None, version: int, members: bool, as_json: bool, texts: _Texts | None
) -> "VersionLineage":
    """Returns the lineage of a version; with ``members`` each trajectory is printed as it is read, with ``texts`` after
    all are.
    """

    from headrace.deploy.errors import StackError
    from headrace.deploy.provenance.choose_run import chosen_run
    from headrace.deploy.provenance.version_page import member_json, member_line
    from headrace.deploy.transcript.page import plain_texts
    from headrace.trainer.provenance.log_reader import open_log
    from headrace.trainer.provenance.read_version import read_graph, read_lineage

    given_all: list[Contribution] = []

    def report(given: "Contribution") -> None:
        if texts is not None:
            given_all.append(given)
        elif members:
            print_json(member_json(given)) if as_json else print_line(member_line(given))

    async with open_log(bootstrap) as steps, open_log(bootstrap) as records:
        run = await chosen_run(records, run)
        graph = await read_graph(records, run)
        if version not in graph:
            raise StackError(f"Run {run!r} has no version {version}: its newest version is {max(graph.parents)}.")
        lineage = await read_lineage(steps, records, run, version, on_contribution=report, progress=_progress_of_steps)
        if texts is not None:
            of = texts.of(records, run)
            for at in range(0, len(given_all), _PORTION):
                portion = given_all[at : at + _PORTION]
                found = await of.at({given.place: given.trajectory_id for given in portion})
                for given in portion:
                    lines = found[given.trajectory_id]
                    if as_json:
                        print_json(member_json(given) | {"text": plain_texts(lines)})
                    else:
                        print_line(member_line(given))
                        _print_text(lines)
        return lineage


async def _trace(
    bootstrap: str, trajectory_id: str | None, event_id: str | None, texts: _Texts | None
) -> "tuple[Trace, list[Line] | None]":
    """Returns the trace, and the trajectory's text; ``None`` without ``texts``, or if its record is missing."""
    from headrace.deploy.errors import StackError
    from headrace.deploy.provenance.trace_page import not_found
    from headrace.trainer.provenance.evidence import Found
    from headrace.trainer.provenance.find import find_event
    from headrace.trainer.provenance.log_reader import open_log
    from headrace.trainer.provenance.read_trace import read_trace
    from headrace.trainer.provenance.trace import TrajectoryFate

    async with open_log(bootstrap) as log:
        event = None
        if event_id is not None:
            search = await find_event(log, event_id, trajectory_id, _progress)
            event = search.event
            if event is None and trajectory_id is None:
                raise StackError(not_found(event_id, search))
            if event is None:
                print_line(not_found(event_id, search), err=True)
            elif trajectory_id not in (None, event.trajectory_id):
                raise StackError(
                    f"Event {event_id} belongs to trajectory {event.trajectory_id}, not to {trajectory_id}."
                )
        wanted = event.trajectory_id if event is not None else trajectory_id or ""
        trace = await read_trace(log, wanted, _progress, event)
        said = None
        if texts is not None and isinstance(trace.trajectory, Found):
            said = await texts.of(log, None).of(trace.trajectory.record)
    if trace.fate is TrajectoryFate.UNKNOWN and trace.trajectory is None:
        raise StackError(
            f"The log has no trajectory, reward, step or rejection with the id {wanted!r}: check the id. A trajectory "
            "whose events have not been assembled yet is not found either."
        )
    return trace, said


def _print_version(lineage: "VersionLineage", top: int, as_json: bool) -> None:

    from headrace.deploy.provenance.version_page import as_json as as_object
    from headrace.deploy.provenance.version_page import page

    if as_json:
        print_json(as_object(lineage), indent=1)
    else:
        print_lines(page(lineage, top))


def _print_trace(trace: "Trace", as_json: bool, said: "list[Line] | None") -> None:

    from headrace.deploy.provenance.trace_page import as_json as as_object
    from headrace.deploy.provenance.trace_page import page
    from headrace.deploy.transcript.page import plain_texts

    if as_json:
        print_json(as_object(trace) | ({} if said is None else {"text": plain_texts(said)}), indent=1)
        return
    print_lines(page(trace))
    if said is not None:
        print_line("")
        _print_text(said)


def _print_text(lines: "list[Line]") -> None:
    from headrace.deploy.transcript.page import Colouring
    from headrace.deploy.transcript.styled import styled

    for line in lines:
        click.echo(styled(line, Colouring.VERSION))


def _draw(found: "VersionLineage | Trace", picture: Path) -> None:
    from headrace.deploy.errors import StackError

    try:
        from headrace.deploy.provenance.picture import draw

        draw(found, picture)
    except ModuleNotFoundError as error:
        raise StackError(f"--picture needs {error.name}: install headrace[local].") from error
    print_line(f"drawn: {picture}", err=True)


def _progress(topic: str, read: int) -> None:
    print_line(f"{topic}: {read:,} records read", err=True)


def _progress_of_steps(done: int, of: int) -> None:
    if of > 200:
        print_line(f"{done:,} of {of:,} steps", err=True)
