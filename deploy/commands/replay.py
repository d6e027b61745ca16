"""``headrace replay``: process a range of the log again, into separate topics."""

from typing import TYPE_CHECKING

import click

from headrace.deploy.terminal import clear_counter, print_json, print_lines, show_counter

if TYPE_CHECKING:
    from headrace.deploy.configuration.settings import Settings
    from headrace.schemas.side_topics import ReplayFinished
    from headrace.streams.rewards.judge_client import JudgeClient
    from headrace.streams.rules import Rules
    from headrace.streams.workers_config import WorkersConfig

STAGES = ("events", "trajectories", "rewards")


@click.command("replay")
@click.argument("name")
@click.option("--from", "begin", metavar="WHEN", help="Start of the range. Default: the log's first offset.")
@click.option("--to", "end", metavar="WHEN", help="End of the range, exclusive. Default: the log's end as of now.")
@click.option(
    "--stage", type=click.Choice(STAGES), default="trajectories", show_default=True,
    help="Topic to start from; every later stage is computed again.",
)  # fmt: skip
@click.option(
    "--rewards", "specs", multiple=True, metavar="[AGENT=]SPEC",
    help="Score AGENT (default: every agent) by SPEC: search@2, package.module:NAME, path/to/file.py:NAME.",
)  # fmt: skip
@click.option(
    "--group-policy", "policies", multiple=True, metavar="SPEC.FIELD=VALUE",
    help="How rewards become groups: '*.baseline=leave_one_out', 'tab.threshold=0.2'.",
)  # fmt: skip
@click.option("--judges", is_flag=True, help="Call judges again (workers.judge_url); default: recorded verdicts.")
@click.option(
    "--archive", metavar="URL",
    help="Object store with the archive of what the log no longer has; default: that of the options of archive.",
)  # fmt: skip
@click.option("--delete", is_flag=True, help="Delete the replay's topics instead.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
def command(
    name: str,
    begin: str | None,
    end: str | None,
    stage: str,
    specs: tuple[str, ...],
    policies: tuple[str, ...],
    judges: bool,
    archive: str | None,
    delete: bool,
    as_json: bool,
    kafka: str | None,
    data: str | None,
) -> None:
    """Process a range of the log again, by the same rules as live processing or by others.

    Writes replay.NAME.trajectories, .rewards, .training, .rejected, .dead-letters, the topics of further processors
    and, at the end, .manifest. Live topics do not change. `headrace diff NAME` shows what would have changed.

    \b
    WHEN is a time           2026-11-20 or 2026-11-20T08:30:00Z, compared with Kafka's record timestamps
    or a time ago            7d, 12h, 30m
    or offsets by partition  0:7104,1:6998 (of the topic that --stage names; other partitions are not read)

    With --archive the range may begin before the log does: records that retention deleted are read from the archive
    that `headrace worker archive` writes.

    The range is processed as if it were the whole log. Trajectories and groups that may have begun before the range are
    left out and counted, and so are those that are still open at its end. Rules that are not given here come from the
    workers' settings (HEADRACE_OPTIONS).

    Recorded verdicts of judges are used if they were given for the same rubrics; no judge is called. With --judges the
    judges are called again, and two replays may differ; otherwise the same range, rules and code give the same bytes.
    Run an interrupted replay again to complete it. A NAME is refused if its replay is complete, or had another range or
    other rules: use another name, or --delete.
    """
    import time
    from dataclasses import replace

    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.errors import StackError
    from headrace.deploy.kafka.run import run_with_kafka
    from headrace.deploy.processes.archive import archive_url
    from headrace.deploy.stack.state import address_of
    from headrace.schemas.archive.segment import SegmentUnreadable
    from headrace.schemas.objects.unavailable import StoreUnavailable
    from headrace.schemas.side_topics import ReplayStage
    from headrace.streams.memory import fit_memory_to_folds
    from headrace.streams.replay.catalog import delete_replay
    from headrace.streams.replay.delivery import DeliveryFailed
    from headrace.streams.replay.fold_processes import FoldFailed
    from headrace.streams.replay.range import parse_bound
    from headrace.streams.replay.run import ReplayConfig, run_replay
    from headrace.streams.replay.sink import ReplayRefused

    bootstrap, settings = address_of("kafka", kafka, data), load_settings(data=data)
    started, now_ms, read = time.monotonic(), time.time_ns() // 1_000_000, 0

    def progress(records: int) -> None:
        nonlocal read
        read += records
        show_counter(f"{read:,} records read")

    async def run() -> "ReplayFinished | list[str]":
        if delete:
            return await delete_replay(bootstrap, name)
        if stage == "rewards" and (specs or judges):
            raise StackError("--stage rewards does not score: use --stage trajectories with --rewards or --judges.")
        workers = workers_of(settings, bootstrap)
        config = ReplayConfig(
            bootstrap,
            name,
            ReplayStage(stage),
            begin=parse_bound(begin, now_ms) if begin else None,
            end=parse_bound(end, now_ms) if end else None,
            rules=rules_of(settings, workers, specs, policies),
            judge_wait_s=workers.judge_wait_s,
            archive=archive_url(archive, settings),
        )
        if not judges:
            return await run_replay(config, progress)
        async with judge_client(workers) as judging:
            return await run_replay(replace(config, judging=judging), progress)

    fit_memory_to_folds()
    try:
        done = run_with_kafka(bootstrap, run)
    except (
        LookupError,
        ValueError,
        ReplayRefused,
        FoldFailed,
        DeliveryFailed,
        StoreUnavailable,
        SegmentUnreadable,
    ) as error:
        raise StackError(f"{error}.") from error
    if read:
        clear_counter()
    if isinstance(done, list):
        print_lines([f"deleted {topic}" for topic in done] or [f"There is no replay {name!r}."])
    elif as_json:
        print_json(done.model_dump(mode="json"), indent=1)
    else:
        print_lines(summary(done, time.monotonic() - started))


def workers_of(settings: "Settings", bootstrap: str) -> "WorkersConfig":
    """Returns the settings of the live workers."""
    from headrace.deploy.configuration.settings import configured
    from headrace.streams.workers_config import WorkersConfig

    return configured(settings, "workers", WorkersConfig, bootstrap=bootstrap, data_dir=settings.data)


def judge_client(workers: "WorkersConfig") -> "JudgeClient":
    """Returns a client for the judge that live workers call; raises ``StackError`` if no judge is configured."""
    from headrace.deploy.errors import StackError
    from headrace.streams.rewards.judge_client import JudgeClient

    if workers.judge_url is None:
        raise StackError("--judges needs an endpoint: set judge_url of workers (HEADRACE_OPTIONS).")
    key = workers.judge_key_file.read_text().strip() if workers.judge_key_file else None
    return JudgeClient(workers.judge_url, key=key, concurrency=workers.judge_concurrency)


def rules_of(
    settings: "Settings", workers: "WorkersConfig", specs: tuple[str, ...], policies: tuple[str, ...]
) -> "Rules":
    """Returns the rules of the workers' settings, with the given rewards and group policies in place of theirs.

    Raises ``StackError`` or ``ValueError`` that names the text that cannot be parsed.
    """
    from headrace.deploy.configuration.settings import configured, parse_options
    from headrace.streams.assembly.assembler import AssemblerConfig
    from headrace.streams.grouping.group_policy import GroupPolicies, parse_policies
    from headrace.streams.rewards.registry import ANY_AGENT, DEFAULTS, parse_rewards
    from headrace.streams.rules import Rules

    assembler = configured(settings, "assemble", AssemblerConfig, bootstrap=workers.bootstrap)
    named = {agent or ANY_AGENT: spec for agent, _, spec in (spec.rpartition("=") for spec in specs)}
    every = named.get(ANY_AGENT)
    # A spec for every agent also replaces the specs that settings and defaults have for single agents.
    others = workers.rewards if every is None else dict.fromkeys(DEFAULTS, every)
    given = parse_policies(parse_options(policies) or {}, name="--group-policy")
    return Rules(
        rewards=parse_rewards({**others, **named}),
        fold=assembler.limits,
        groups=workers.limits,
        policies=GroupPolicies({**workers.policies.by_spec, **given.by_spec}),
        join=workers.join_limits,
    )


def summary(done: "ReplayFinished", seconds: float) -> list[str]:
    """Returns the manifest as readable lines."""
    from datetime import UTC, datetime

    def moment(unix_ms: int) -> str:
        return f"{datetime.fromtimestamp(unix_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"

    (topic, spans), *_ = done.spans.items()
    offsets = ", ".join(f"{span.partition}:{span.start}–{span.stop}" for span in spans)
    rows = [
        ("range", f"{topic} {offsets}"),
        ("stream time", f"{moment(done.begin_ms)} to {moment(done.end_ms)}"),
        ("rewards", ", ".join(f"{agent} {spec}" for agent, spec in done.rewards.items())),
        *((name.replace("_", " "), f"{count:,}") for name, count in done.counts.items()),
        ("sha256", done.sha256),
    ]
    lines = [f"replay {done.name}, from {done.stage} on, in {seconds:.1f} s"]
    return [*lines, *(f"  {label:<36}{value}" for label, value in rows), f"`headrace diff {done.name}` compares it"]
