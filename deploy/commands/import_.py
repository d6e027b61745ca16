"""``headrace import``: convert recorded runs to events."""

from pathlib import Path

import click

from headrace.deploy.terminal import print_line


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dataset", metavar="NAME", help="Data set name, part of every id. Default: the file's name.")
@click.option("--agent", metavar="NAME", default="imported", show_default=True, help="Agent that was recorded.")
@click.option("--model", metavar="NAME", default="unknown", show_default=True, help="Model of lines that name none.")
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
def command(file: Path, dataset: str | None, agent: str, model: str, kafka: str | None, data: str | None) -> None:
    """Convert recorded runs (OpenAI chat messages, one JSON object per line) to events.

    \b
    A line: {"task_id": …, "trial": …, "reward": …, "traj": [messages with tool_calls and tool results]}

    The attempts at one task form a group. Recorded runs have no token ids, so they are scored and counted, but rejected
    from training. Importing a file again changes nothing; an interrupted import is completed. To find what was imported
    before, the first import reads all of `events` and keeps the result in the cache (HEADRACE_CACHE); later imports
    read only newer records.

    A line that cannot be read is reported with its number and left out; the exit status is then 1, otherwise 0.
    """
    from headrace.agents.importer import BadLine, import_runs, survey
    from headrace.agents.openai_runs import Dataset
    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.stack.state import address_of

    bootstrap = address_of("kafka", given=kafka, data=data)
    cache = load_settings().cache / "folds"
    what = Dataset(dataset or file.stem, agent=agent, model=model)

    def report(bad: BadLine) -> None:
        print_line(f"{file}:{bad.number}: left out: {bad.reason}", err=True)

    print_line(f"reading {file} …", err=True)
    found = survey(file, what, report)
    try:
        with click.progressbar(
            length=len(found.trials), label="importing", file=click.get_text_stream("stderr")
        ) as bar:
            done = run_with_kafka(bootstrap, lambda: import_runs(file, what, found, bootstrap, bar.update, cache=cache))
    except LookupError as error:
        raise StackError(f"Kafka at {bootstrap}: {error}. Nothing is lost: run the same import again.") from error
    print_line(
        f"{what.name}: {found.lines} lines, {len(found.trials)} trajectories in {len(found.group_sizes)} groups; "
        f"{done.sent} events sent, {done.skipped} already in the log; {len(found.bad)} bad lines"
    )
    if found.bad:
        raise SystemExit(1)
