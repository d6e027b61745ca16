"""``headrace ledger``: every trajectory and its fate."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.deploy.terminal import print_json, print_line, print_lines

if TYPE_CHECKING:
    from headrace.streams.ledger.breakdown import BreakdownRow
    from headrace.streams.ledger.follow import LedgerCheck

KEYS = ("version", "reason", "task", "step", "stage", "agent")


@click.command("ledger")
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
@click.option("--by", type=click.Choice(KEYS), help="Count trained, rejected and pending by this key.")
@click.option("--from-start", is_flag=True, help="Read the whole log again instead of using the cache.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --follow one object per line.")
@click.option("--follow", is_flag=True, help="Repeat the check until SIGTERM or Ctrl-C, one line per check.")
@click.option("--every", default=5.0, show_default=True, metavar="SECONDS", help="Time between checks.")
@click.option(
    "--patience", default=3, show_default=True, metavar="CHECKS", help="Failed checks in a row that end --follow."
)
def command(
    kafka: str | None,
    data: str | None,
    by: str | None,
    from_start: bool,
    as_json: bool,
    follow: bool,
    every: float,
    patience: int,
) -> None:
    """Count trajectories by fate and check that the counts add up to those started.

    The exit status is 1 if they do not. With --follow a mismatch also raises an alert (`ledger_mismatch` in alerts),
    and the command waits for a broker that becomes unavailable; without --follow it gives up after a minute.

    The first count reads the whole log and keeps its result in the cache (HEADRACE_CACHE); later counts read only newer
    records. Trajectories whose records have expired since then stay counted, until --from-start.

    Each trajectory takes about 300 bytes of memory: 300 MB for a million.
    """
    import sys
    from math import inf

    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.kafka.run import RETRY_LIMIT_S, run_with_kafka
    from headrace.deploy.stack.state import address_of

    if follow and by:
        raise click.UsageError("--follow prints totals only: leave out --follow or --by.")
    bootstrap = address_of("kafka", kafka, data)
    cache = load_settings().cache / "folds"

    async def run() -> bool:
        if follow:
            return await _follow(bootstrap, cache, every, patience, as_json, from_start=from_start)
        return await _count(bootstrap, cache, by, as_json, from_start=from_start)

    sys.exit(0 if run_with_kafka(bootstrap, run, retry_limit_s=inf if follow else RETRY_LIMIT_S) else 1)


async def _count(bootstrap: str, cache: Path, by: str | None, as_json: bool, *, from_start: bool) -> bool:
    """Print the ledger; returns whether it adds up."""
    from dataclasses import asdict

    from headrace.streams.ledger.breakdown import By, breakdown
    from headrace.streams.ledger.kept import kept_ledger
    from headrace.streams.ledger.ledger import cut_topics

    reader = await kept_ledger(bootstrap, cache, from_start=from_start)
    ledger = reader.tally.ledger(cut=await cut_topics(bootstrap))
    shown = ledger.as_dict()
    rows = breakdown(reader.tally.accounts.values(), By(by)) if by else None
    if as_json:
        keyed = {} if rows is None else {"by": {"key": by, "rows": {key: asdict(row) for key, row in rows.items()}}}
        print_json(shown | keyed, indent=1)
    else:
        print_lines(table(shown) if rows is None or by is None else table_by(by, rows, shown))
    return ledger.adds_up


async def _follow(bootstrap: str, cache: Path, every: float, patience: int, as_json: bool, *, from_start: bool) -> bool:
    """Print a line per check; returns whether the ledger added up until the process was stopped."""
    import asyncio
    import signal

    from headrace.deploy.errors import StackError
    from headrace.streams.ledger.follow import FollowConfig, LedgerMismatch, follow_ledger

    try:
        config = FollowConfig(bootstrap, every_s=every, patience=patience, cache=cache, from_start=from_start)
    except ValueError as error:
        raise StackError(f"--every and --patience: {error}") from error
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def report(check: "LedgerCheck") -> None:
        print_json({"time_ms": check.time_ms, **check.ledger.as_dict()}) if as_json else print_line(line(check))

    try:
        await follow_ledger(config, stop=stop, report=report)
    except LedgerMismatch as error:
        print_line(f"The ledger does not add up, {patience} checks in a row: {error}", err=True)
        return False
    return True


def line(check: "LedgerCheck") -> str:
    """Returns a check as one line."""
    from datetime import UTC, datetime

    ledger = check.ledger
    time = datetime.fromtimestamp(check.time_ms / 1000, UTC)
    waiting = ", ".join(f"{stage} {count:,}" for stage, count in ledger.pending_by.items() if count)
    return (
        f"{time:%H:%M:%S}  started {ledger.started:,}  trained {ledger.trained:,}  rejected {ledger.rejected:,}  "
        f"pending {ledger.pending:,}{f' ({waiting})' if waiting else ''}  "
        + ("adds up" if ledger.adds_up else f"DOES NOT ADD UP: {ledger.conflicting} contradictions")
    )


def table(ledger: dict[str, Any]) -> list[str]:
    """Returns the ledger as lines of a table, with fates indented under their sum."""
    lines = [_row("started", ledger["started"])]
    for name, label in (("seen_without_start", "seen without a start"), ("expired", "events expired")):
        if ledger[name]:
            lines.append(_row(label, ledger[name]))
    lines.append(_row("trained", ledger["trained"]))
    steps = len(ledger["trained_by_step"])
    if steps:
        lines.append(_row(f"  in {steps} step{'s' if steps > 1 else ''}", ledger["trained"]))
    lines.append(_row("rejected", ledger["rejected"]))
    for stage, reasons in ledger["rejected_by"].items():
        lines += [_row(f"  {stage}: {reason}", count) for reason, count in reasons.items()]
    lines.append(_row("pending", ledger["pending"]))
    lines += [_row(f"  {stage}", count) for stage, count in ledger["pending_by"].items() if count]
    return [*lines, *_verdict(ledger)]


def table_by(by: str, rows: dict[str, "BreakdownRow"], ledger: dict[str, Any]) -> list[str]:
    """Returns the counts by key as lines of a table, with the totals last."""
    width = max(len(by), 5, *(len(key) for key in rows)) if rows else max(len(by), 5)
    entries = [(key, row.trained, row.rejected, row.pending) for key, row in rows.items()]
    entries.append(("total", ledger["trained"], ledger["rejected"], ledger["pending"]))
    return [
        f"{by:<{width}}{'trained':>12}{'rejected':>12}{'pending':>12}",
        *(f"{key:<{width}}{trained:>12,}{rejected:>12,}{pending:>12,}" for key, trained, rejected, pending in entries),
        *_verdict(ledger),
    ]


def _verdict(ledger: dict[str, Any]) -> list[str]:
    total = ledger["trained"] + ledger["rejected"] + ledger["pending"]
    lines = [f"It adds up: {total}." if ledger["adds_up"] else f"IT DOES NOT ADD UP: {total} fates."]
    if ledger["unreadable"]:
        lines.append(f"{ledger['unreadable']} records could not be read.")
    lines += [f"  {conflict}" for conflict in ledger["conflicts"]]
    unnamed = ledger["conflicting"] - len(ledger["conflicts"])
    return [*lines, f"  and {unnamed} more"] if unnamed else lines


def _row(label: str, count: int) -> str:
    return f"{label:<48}{count:>10,}"
