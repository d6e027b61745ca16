"""``headrace show``: what the model read and said in a trajectory, and what became of it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.deploy.terminal import print_json, print_line, print_lines
from headrace.schemas.safe_text import printable

if TYPE_CHECKING:
    from headrace.deploy.transcript.decoding import Decode
    from headrace.deploy.transcript.page import Fragment
    from headrace.schemas.records.trajectory import Trajectory
    from headrace.trainer.provenance.trace import Trace

_VERSION_COLOURS = ("green", "yellow", "cyan", "magenta", "bright_blue", "bright_red")
"""Colours of policy versions, repeated."""
_LOGPROB_COLOURS = {-0.1: "green", -1.0: "yellow", -3.0: "bright_red"}
"""Colours of the bands of log-probabilities; below the last one: red."""
_CONTEXT_CHARACTERS = 600


@click.command("show")
@click.argument("trajectory_id", metavar="TRAJECTORY")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Folder of the model, or its tokenizer.json; default: the one that the run's trainer published.",
)
@click.option("--ids", is_flag=True, help="Print token ids instead of text.")
@click.option(
    "--colour",
    type=click.Choice(["version", "logprob", "none"]),
    default="version",
    show_default=True,
    help="What the colour of sampled text stands for.",
)
@click.option("--full", is_flag=True, help=f"Print contexts longer than {_CONTEXT_CHARACTERS} characters whole.")
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
    """Show TRAJECTORY: what the model read and said, its tools, rewards and fate.

    \b
      headrace show 019f…                          text, coloured by policy version
      headrace show 019f… --colour logprob         green: sure; red: surprising
      headrace show 019f… --tokenizer ./model      if no trainer has published the run's tokenizer
      headrace lineage --version 12 --members      ids of trajectories; so do `headrace tail rewards` and the dashboard

    Below it stand the other attempts of its group, with reward and advantage.
    """
    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.provenance.trace_page import as_json as trace_as_json
    from headrace.deploy.provenance.trace_page import page
    from headrace.deploy.stack.state import address_of
    from headrace.deploy.transcript.page import Colouring, transcript
    from headrace.deploy.transcript.siblings import siblings
    from headrace.trainer.provenance.evidence import Found

    if ids and tokenizer is not None:
        raise click.UsageError("Use either --ids or --tokenizer.")
    bootstrap = address_of("kafka", kafka, data)
    trace, found = run_with_kafka(bootstrap, lambda: _read(bootstrap, trajectory_id, tokenizer, ids, data))
    if not isinstance(trace.trajectory, Found):
        print_lines(page(trace))
        raise StackError("Its record is not in `trajectories`: there is nothing to show.")
    record: Trajectory = trace.trajectory.record
    lines = transcript(record, found, Colouring(colour), None if full or as_json else _CONTEXT_CHARACTERS)
    if as_json:
        texts = ["".join(fragment.text for fragment in line) for line in lines]
        print_json(trace_as_json(trace) | {"transcript": texts}, indent=1)
        return
    print_lines(page(trace))
    print_line("")
    for line in lines:
        click.echo("".join(_styled(fragment) for fragment in line))
    if found is None and record.segments and not ids:
        print_line(
            "The run's tokenizer is not known: no trainer has published it. Name the model's folder with --tokenizer.",
            err=True,
        )
    if others := siblings(trace):
        print_lines(["", *others])


async def _read(
    bootstrap: str, trajectory_id: str, tokenizer: Path | None, ids: bool, data: str | None
) -> "tuple[Trace, Decode | None]":
    """Returns the trajectory's trace, and the decoder of its run; raises ``StackError`` for an unknown trajectory."""
    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.errors import StackError
    from headrace.deploy.transcript.tokenizer import decoder, published_tokenizer, read_tokenizer
    from headrace.trainer.provenance.evidence import Found
    from headrace.trainer.provenance.log_reader import open_log
    from headrace.trainer.provenance.read_trace import read_trace
    from headrace.trainer.provenance.trace import TrajectoryFate

    decode = None if tokenizer is None else decoder(read_tokenizer(tokenizer))
    async with open_log(bootstrap) as log:
        trace = await read_trace(log, trajectory_id, lambda topic, read: None)
        if trace.fate is TrajectoryFate.UNKNOWN and trace.trajectory is None:
            raise StackError(
                f"The log has no trajectory with the id {trajectory_id!r}: check the id. One that has not ended, or "
                "has not been assembled yet, is not found either: `headrace tail events --trajectory "
                f"{printable(trajectory_id)}` shows its events."
            )
        record: Trajectory | None = trace.trajectory.record if isinstance(trace.trajectory, Found) else None
        if decode is None and not ids and record is not None and record.started is not None and record.segments:
            published = await published_tokenizer(log, load_settings(data=data).objects, record.started.run)
            decode = None if published is None else decoder(published[1])
    return trace, decode


def _styled(fragment: "Fragment") -> str:
    """Returns a fragment with its colour; click removes colours if the output is not a terminal."""
    from headrace.deploy.transcript.page import Kind

    text = printable(fragment.text)
    if fragment.kind is Kind.HEADING:
        return click.style(text, bold=True)
    if fragment.kind is Kind.EVENT:
        return click.style(text, fg="blue")
    if fragment.kind is Kind.CONTEXT:
        return click.style(text, fg="bright_black")
    if fragment.value is None:
        return click.style(text, fg="green")
    if fragment.value >= 0:
        return click.style(text, fg=_VERSION_COLOURS[int(fragment.value) % len(_VERSION_COLOURS)])
    return click.style(text, fg=_LOGPROB_COLOURS.get(fragment.value, "red"))
