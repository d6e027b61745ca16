"""``headrace show``: what the model read and said in a trajectory, and what became of it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.tail.shortened_ids import whole_id
from headrace.deploy.terminal import print_json, print_line, print_lines
from headrace.schemas.safe_text import printable

if TYPE_CHECKING:
    from headrace.deploy.transcript.decoding import Decode
    from headrace.deploy.transcript.page import Colouring
    from headrace.deploy.transcript.reading import Beside
    from headrace.schemas.records.trajectory import Trajectory
    from headrace.trainer.provenance.trace import Trace


@click.command("show")
@click.argument("trajectory_id", metavar="TRAJECTORY", callback=whole_id)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Folder of the model, or its tokenizer.json; default: the one that the run's trainer published.",
)
@click.option("--ids", is_flag=True, help="Print token ids instead of text.")
@click.option(
    "--colour",
    type=click.Choice(["version", "logprob", "advantage", "none"]),
    default="version",
    show_default=True,
    help="What the colour of sampled text stands for.",
)
@click.option("--full", is_flag=True, help="Print long contexts, tool results and messages whole.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
def command(
    trajectory_id: str,
    tokenizer: Path | None,
    ids: bool,
    colour: str,
    full: bool,
    as_json: bool,
    kafka: str | None,
    data: str | None,
) -> None:
    """Show TRAJECTORY: what the model read and said, its tools, sub-agents, rewards, feedback and fate.

    \b
      headrace show 019f…                          text, coloured by policy version
      headrace show 019f… --colour logprob         green: sure; red: surprising
      headrace show 019f… --colour advantage       green: better than its group's baseline; red: worse
      headrace show 019f… --tokenizer ./model      if no trainer has published the run's tokenizer
      headrace lineage --version 12 --members      ids of trajectories; so do `headrace tail rewards --full` and the
                                                   dashboard

    Without a tokenizer the messages of the calls are shown, if the agent recorded them for every turn, else token ids.

    Summaries, prunes and sub-agents stand in their turn; `headrace show` with a sub-agent's id shows what it did. Below
    stand the attempts of the group: the terms of the reward, the answer, and what each did in the turn in which it
    parts from this one. Of more than eight the best four and the worst four have their text.
    """
    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.provenance.trace_page import as_json as trace_as_json
    from headrace.deploy.provenance.trace_page import page
    from headrace.deploy.stack.state import address_of
    from headrace.deploy.transcript.page import SHORT, WHOLE, Colouring, plain_texts, transcript
    from headrace.deploy.transcript.siblings import as_json as group_as_json
    from headrace.deploy.transcript.siblings import siblings
    from headrace.deploy.transcript.styled import styled
    from headrace.trainer.provenance.evidence import Found

    if ids and tokenizer is not None:
        raise click.UsageError("Use either --ids or --tokenizer.")
    bootstrap = address_of("kafka", kafka, data)
    trace, beside, decode = run_with_kafka(bootstrap, lambda: _read(bootstrap, trajectory_id, tokenizer, ids, data))
    if not isinstance(trace.trajectory, Found):
        print_lines(page(trace))
        raise StackError("Its record is not in `trajectories`: there is nothing to show.")
    record: Trajectory = trace.trajectory.record
    colouring, advantage = Colouring(colour), trace.member.advantage if trace.member else None
    limits = WHOLE if full or as_json else SHORT
    lines = transcript(record, decode, colouring, limits, beside.notes or (), advantage)
    group = beside.group
    if as_json:
        more = {
            "feedback": [each.record.model_dump(mode="json") for each in beside.feedback],
            "group": group and group_as_json(group),
        }
        print_json(trace_as_json(trace) | {"transcript": plain_texts(lines)} | more, indent=1)
        return
    print_lines([*page(trace), *_feedback_lines(beside), ""])
    for line in lines:
        click.echo(styled(line, colouring))
    if group is not None:
        print_lines(["", *siblings(group, trajectory_id, decode)])
    for hint in _hints(trace, beside, record, is_text=decode is not None, colouring=colouring):
        print_line(hint, err=True)


def _feedback_lines(beside: "Beside") -> list[str]:
    """Returns a row for each feedback, with its place and its comment, as the rows of the trace."""
    from headrace.deploy.tail.sentence import sentence

    lines = []
    for each in beside.feedback:
        said = sentence(each.record.model_copy(update={"comment": None}), str)
        comment = f": {each.record.comment}" if each.record.comment else ""
        place = f"feedback {each.place[0]}:{each.place[1]}"
        lines.append(f"  {'feedback':<12}{place:<24}{said}{comment}")
    return lines


def _hints(
    trace: "Trace", beside: "Beside", record: "Trajectory", *, is_text: bool, colouring: "Colouring"
) -> list[str]:
    """Returns what cannot be shown, and why."""
    from headrace.deploy.transcript.messages import has_messages
    from headrace.deploy.transcript.page import Colouring

    hints = []
    if not is_text and record.segments:
        told = " The messages of the calls are shown instead of their tokens." if has_messages(record) else ""
        hints.append(
            "The run's tokenizer is not known: no trainer has published it. Name the model's folder with --tokenizer."
            + told
        )
    if beside.notes is None and (record.subagents_assigned or any(turn.summarized for turn in record.turns)):
        hints.append("Some of its events have expired, and with them the texts of its summaries and its sub-agents.")
    if colouring is Colouring.ADVANTAGE and trace.member is None:
        hints.append("It is in no training group, so it has no advantage: its text has no colour.")
    return hints


async def _read(
    bootstrap: str, trajectory_id: str, tokenizer: Path | None, ids: bool, data: str | None
) -> "tuple[Trace, Beside, Decode | None]":
    """Returns the trajectory's trace, what is shown beside it, and the decoder of its run; raises ``StackError`` for an
    unknown trajectory.
    """
    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.errors import StackError
    from headrace.deploy.transcript.decoding import ids_as_text
    from headrace.deploy.transcript.reading import Beside, read_beside
    from headrace.deploy.transcript.tokenizer import decoder, published_tokenizer, read_tokenizer
    from headrace.trainer.provenance.evidence import Found
    from headrace.trainer.provenance.log_reader import open_log
    from headrace.trainer.provenance.read_trace import read_trace
    from headrace.trainer.provenance.trace import TrajectoryFate

    decode = ids_as_text if ids else None if tokenizer is None else decoder(read_tokenizer(tokenizer))
    async with open_log(bootstrap) as log:
        trace = await read_trace(log, trajectory_id, lambda topic, read: None)
        if trace.fate is TrajectoryFate.UNKNOWN and trace.trajectory is None:
            raise StackError(
                f"The log has no trajectory with the id {trajectory_id!r}: check the id. One that has not ended, or "
                "has not been assembled yet, is not found either: `headrace tail events --trajectory "
                f"{printable(trajectory_id)}` shows its events."
            )
        record: Trajectory | None = trace.trajectory.record if isinstance(trace.trajectory, Found) else None
        if decode is None and record is not None and record.started is not None and record.segments:
            published = await published_tokenizer(log, load_settings(data=data).objects, record.started.run)
            decode = None if published is None else decoder(published[1])
        beside = Beside(None, (), None)
        if record is not None:
            beside = await read_beside(log, trace, lambda topic, read: None)
    return trace, beside, decode
