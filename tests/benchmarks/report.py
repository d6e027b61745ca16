"""The figures as a page: every table with the machine, the date and the command that produced it."""

import random
import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tests.benchmarks.contender import Sample
from tests.benchmarks.latency import ENDS
from tests.benchmarks.whole_path import TITLES, generators, without_broker

Figures = dict[str, Any]

OURS = "headrace"

ROUNDS_FOR_A_RATIO = 12
"""With fewer rounds the ratio of two medians is unreliable: over five, four processes did 2.4 to 4.3 times one."""


@dataclass(frozen=True, slots=True)
class Medians:
    """Medians over the rounds of one row, each column by itself."""

    per_s: float
    per_core_s: float
    memory_mb: float
    broker_s_per_million: float
    cores: float


def medians(samples: Iterable[Figures]) -> Medians:
    """The row of the table for ``samples``."""
    rounds = [Sample(**sample) for sample in samples]
    return Medians(*(statistics.median(getattr(one, field.name) for one in rounds) for field in fields(Medians)))


def quantile(ascending: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all values do not exceed."""
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))]


def markdown(figures: Figures) -> str:
    """The page."""
    parts = ["# Speed of the stream side, next to its peers"]
    parts += [section(figures[name]) for name, section in SECTIONS.items() if name in figures]
    return "\n\n".join(parts) + "\n"


def throughput(figures: Figures) -> str:
    """Events to trajectories, one row per contender."""
    rows = {name: medians(samples) for name, samples in figures["samples"].items()}
    table = table_of(
        (
            "",
            "k events/s",
            "k events/core-second",
            "headrace ÷ row, wall",
            "headrace ÷ row, core",
            "MiB",
            "broker s/M events",
            "cores, with broker",
        ),
        [
            (
                figures["titles"][name],
                f"{row.per_s / 1e3:.1f}",
                f"{row.per_core_s / 1e3:.1f}",
                *_beside(rows, name),
                f"{row.memory_mb:.0f}",
                f"{row.broker_s_per_million:.1f}",
                f"{row.cores:.1f}",
            )
            for name, row in rows.items()
        ],
    )
    text = f"""{figures["events"]:,} events of {figures["bytes_an_event"]} bytes, 20 per trajectory,
        {figures["open"]} trajectories open at a time in each of 4 partitions. Every row but the bare loops writes one
        record per trajectory, exactly once. Each row is one process (or as many as it names) on the same log.
        {_rounds(figures)}: four processes or threads are timed over four fifths of the log, one over a fifth, Quix
        Streams over less; {_warmed(figures)}. headrace validates every event and handles gaps, duplicates, late
        events and timeouts; of the peers, only the last row of Quix Streams parses events. Ratios of rows with four
        processes or threads refer to headrace's four processes. The broker runs on the same cores."""
    for name, count in (("2", "two"), ("4", "four")):
        if OURS in rows and f"{OURS}-{name}" in rows:
            text += scaling(figures["samples"][OURS], figures["samples"][f"{OURS}-{name}"], count)
    return _section("Events → trajectories", text, table, "throughput.png", figures)


def scaling(one: Sequence[Figures], several: Sequence[Figures], count: str) -> str:
    """The speed-up of several processes over one, with a bootstrapped 95 % interval; empty for few rounds."""
    if min(len(one), len(several)) < ROUNDS_FOR_A_RATIO:
        return ""
    rates = [[Sample(**each).per_s for each in samples] for samples in (several, one)]
    rng = random.Random(0)
    ratios = sorted(
        statistics.median(rng.choices(rates[0], k=len(rates[0])))
        / statistics.median(rng.choices(rates[1], k=len(rates[1])))
        for _ in range(2_000)
    )
    low, high = quantile(ratios, 0.025), quantile(ratios, 0.975)
    middle = statistics.median(rates[0]) / statistics.median(rates[1])
    return (
        f" {count.title()} headrace processes do {middle:.1f} × the work of one (95 % interval {low:.1f}–{high:.1f})."
    )


def _warmed(figures: Figures) -> str:
    seconds = figures.get("warm_s")
    return (
        "the first third of each is not counted"
        if seconds is None
        else f"each after {seconds:g} s of work, or a third of the log"
    )


def _beside(rows: Mapping[str, Medians], name: str) -> tuple[str, str]:
    """How many times as fast headrace is as the row ``name``: by wall time, and per core."""
    ours = rows.get(f"{OURS}-4" if name.endswith("-4") else OURS)
    if ours is None or name.startswith(OURS):
        return "", ""
    if not rows[name].per_s or not rows[name].per_core_s:  # finished before the first sample: the load is too small
        return "not measured", "not measured"
    return f"{ours.per_s / rows[name].per_s:.2f} ×", f"{ours.per_core_s / rows[name].per_core_s:.2f} ×"


def workers(figures: Figures) -> str:
    """Trajectories to groups."""
    text = f"""{figures["trajectories"]:,} trajectories in groups of 8. {_rounds(figures)}, the first third of each not
        counted."""
    return _section("Trajectories → groups", text, _trajectories_a_second(figures), None, figures)


def replay(figures: Figures) -> str:
    """Replay of the log."""
    text = f"""{figures["trajectories"]:,} trajectories, with {figures["events_each"]} events each in the first row.
        {_rounds(figures)}; the start of Python is included."""
    return _section("`headrace replay`", text, _trajectories_a_second(figures), None, figures)


def readers(figures: Figures) -> str:
    """Commands that read the log."""
    rows = [
        (figures["titles"][name], f"{one['wall_s']:.1f} s", f"{one['cpu_s']:.1f} s", f"{one['memory_mb']:.0f}")
        for name, one in figures["samples"].items()
    ]
    text = f"""A log of {figures["events"]:,} events in {figures["trajectories"]:,} trajectories, assembled, scored and
        grouped, and a replay of them. One sample of each command, one after the other; the first only starts Python."""
    table = table_of(("", "wall", "processor time", "MiB, peak"), rows)
    return _section("Commands that read the log", text, table, None, figures)


def latency(figures: Figures) -> str:
    """Last event to training record and to its row."""
    rows = [
        (
            f"to the {ENDS[name]}",
            *(f"{quantile(seconds, share):.2f} s" for share in (0.5, 0.9, 0.99)),
            f"{seconds[-1]:.2f} s",
        )
        for name, seconds in figures["latencies_s"].items()
    ]
    table = table_of(("", "p50", "p90", "p99", "largest"), rows)
    cores = ", ".join(f"{TITLES.get(name, name)} {used:.2f}" for name, used in figures["cores"].items())
    groups = len(figures["latencies_s"]["training"])
    text = f"""{groups:,} groups at {figures["rate"]:,.0f} events/s, which is half of what the whole path
        processed on this machine; assemble, score, group and the sink run in one process each. Measured from the time
        at which the group's last event was due (the generator is open-loop, at most
        {figures["generator_late_ms"]:.0f} ms late) to the arrival of its training record at a reader of committed
        records, and until that record's row is seen by a query every 0.1 s. Cores in use: {cores}."""
    return _section("Last event → training record and row, at half load", text, table, "latency.png", figures)


def recovery(figures: Figures) -> str:
    """Kill -9 to new trajectories."""
    table = table_of(
        ("", "median", "all rounds"),
        [
            (
                figures["titles"][name],
                f"{statistics.median(seconds):.1f} s",
                ", ".join(f"{one:.1f}" for one in seconds),
            )
            for name, seconds in figures["seconds"].items()
        ],
    )
    text = f"""{figures["open_events"]:,} events of {figures["open_trajectories"]:,} trajectories are open when the
        process is killed and immediately restarted under the same member name. Measured until every partition has
        produced trajectories that were sent after the kill; the start of Python or of the JVM is included."""
    return _section("Recovery after kill -9", text, table, "recovery.png", figures)


def remembered(figures: Figures) -> str:
    """Recovery with as many remembered trajectories as possible."""
    table = table_of(
        ("trajectory size", "read", "median", "only reading", "all rounds"),
        [
            (
                f"{kilobytes} KB",
                f"{each['bytes'] / 2**20:,.0f} MiB",
                f"{statistics.median(each['seconds']):.1f} s",
                f"{statistics.median(each['reading_s']):.1f} s",
                ", ".join(f"{one:.1f}" for one in each["seconds"]),
            )
            for kilobytes, each in figures["sizes"].items()
        ],
    )
    text = f"""{figures["remembered"]:,} closed trajectories in one partition (20,000 are remembered by default), and
        none open. Measured from the start after kill -9 to the first trajectory that was sent afterwards; for
        comparison, the time to read the same records with librdkafka and discard them."""
    return _section("Recovery with many remembered trajectories", text, table, None, figures)


def whole_path(figures: Figures) -> str:
    """Processor time per event, by process."""
    samples, before = figures["samples"], figures.get("before", [])

    def us(of: Callable[[Figures], float], unit: str = " µs") -> tuple[str, ...]:
        now = statistics.median(map(of, samples))
        if not before:
            return (f"{now:.1f}{unit}",)
        earlier = statistics.median(map(of, before))
        return f"{now:.1f}{unit}", f"{earlier:.1f}{unit}", f"{now / earlier:.2f}"

    def middle(values: Iterable[float]) -> float:
        return statistics.median(values)

    def of(name: str) -> Callable[[Figures], float]:
        return lambda sample: float(sample["us_per_event"][name])

    rows = [
        (title, *us(of(name)), f"{middle(each['memory_mb'][name] for each in samples):.0f}")
        for name, title in figures["titles"].items()
    ]
    rows.append(("all but the broker", *us(without_broker), ""))
    is_generator_known = all("generator_us" in sample for sample in (*samples, *before))  # since 2026-11-28
    if is_generator_known:
        rows.append(("the generator", *us(lambda sample: float(sample["generator_us"])), ""))
        rows.append(("all but the broker, in generators", *us(generators, ""), ""))
    header = ("", "per event", *(("before", "of it") if before else ()), "MiB")
    rounds = "One round" if len(samples) == 1 else f"Medians of {len(samples)} rounds"
    text = f"""{figures["trajectories"]:,} trajectories of 20 events, written as fast as the broker accepts them, to
        training records and to rows in ClickHouse. {rounds}, after a start that is not counted. Processor time per
        event of each process with its children, until ClickHouse's merges have ended. Rows are there
        {middle(each["wall_s"] for each in samples):.0f} s after the first event."""
    if is_generator_known:
        text += """ The generator does the same work in every sample, so the last row does not depend on how fast the
            machine was in each."""
    if before:
        text += " Before: the same with the processes of an older checkout, in turns."
        if is_generator_known:
            text += " Its generator is its own."
    return _section("The whole path", text, table_of(header, rows), None, figures)


SECTIONS = {
    "throughput": throughput,
    "workers": workers,
    "recovery": recovery,
    "remembered": remembered,
    "replay": replay,
    "readers": readers,
    "whole_path": whole_path,
    "latency": latency,
}
"""The section of each measurement, in the page's order."""


def _section(title: str, text: str, table: str, picture: str | None, figures: Figures) -> str:
    """A heading, a paragraph, a table, a picture, and where it was measured."""
    paragraph = textwrap.fill(" ".join(text.split()), 120)
    shown = [f"![{title}]({picture})"] if picture else []
    return "\n\n".join([f"## {title}", paragraph, table, *shown, textwrap.fill(measured_on(figures), 120)])


def _trajectories_a_second(figures: Figures) -> str:
    rows = [(figures["titles"][name], medians(samples)) for name, samples in figures["samples"].items()]
    return table_of(
        ("", "trajectories/s", "trajectories/core-second", "MiB"),
        [(title, f"{row.per_s:,.0f}", f"{row.per_core_s:,.0f}", f"{row.memory_mb:.0f}") for title, row in rows],
    )


def _rounds(figures: Figures) -> str:
    rounds = max(map(len, figures["samples"].values()))
    return "One round" if rounds == 1 else f"Medians of {rounds} interleaved rounds"


def measured_on(figures: Figures) -> str:
    """When, where, and by which command."""
    about = figures["about"]
    machine = about["machine"]
    return (
        f"*{about['date']}, `{about['command']}`: {about['took_s']} s on {machine['cores']} cores ({machine['cpu']}), "
        f"{machine['memory_gib']} GiB, {machine['system']}, Python {machine['python']}; "
        f"load {machine['load_before']} before.*"
    )


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first are numbers."""
    lines = [head, ["---" if number == 0 else "---:" for number in range(len(head))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
