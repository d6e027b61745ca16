"""``headrace ledger``: every trajectory and its fate."""

from typing import Any

import click


@click.command("ledger")
@click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA).")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(kafka: str | None, data: str | None, as_json: bool) -> None:
    """Count trajectories by fate, and say whether they add up to those started.

    Exit status 1 where they do not.
    """
    import asyncio
    import json
    import sys

    from headrace.deploy.kafka import wait_until_answers
    from headrace.deploy.state import address_of
    from headrace.streams.ledger import Ledger, read_ledger

    bootstrap = address_of("kafka", kafka, data)

    async def read() -> Ledger:
        await wait_until_answers(bootstrap, 10.0)
        return await read_ledger(bootstrap)

    ledger = asyncio.run(read())
    shown = ledger.as_dict()
    click.echo(json.dumps(shown, indent=1) if as_json else "\n".join(table(shown)))
    sys.exit(0 if ledger.adds_up else 1)


def table(ledger: dict[str, Any]) -> list[str]:
    """The ledger as lines of a table, fates indented under their sum."""
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
    total = ledger["trained"] + ledger["rejected"] + ledger["pending"]
    lines.append(f"It adds up: {total}." if ledger["adds_up"] else f"IT DOES NOT ADD UP: {total} fates.")
    if ledger["unreadable"]:
        lines.append(f"{ledger['unreadable']} records could not be read.")
    lines += [f"  {conflict}" for conflict in ledger["conflicts"]]
    unnamed = ledger["conflicting"] - len(ledger["conflicts"])
    return [*lines, f"  and {unnamed} more"] if unnamed else lines


def _row(label: str, count: int) -> str:
    return f"{label:<48}{count:>10,}"
