"""The speed of the stream side next to its peers, in one run: a table, plots, and the raw figures.

    python -m tests.benchmarks.streams [--quick] [--only throughput,latency] [--rounds 3] [--out FOLDER]
                                       [--before CHECKOUT]

Starts a broker for each measurement, and needs Java, Maven, uv and their registries, and an otherwise idle machine.
Compare rows of one run with each other, not figures of different machines. Measurements omitted by ``--only`` keep
their previous figures. With ``--before``, the processes of another checkout walk the whole path, too, in turns; its
extension module must be built.
"""

import argparse
import asyncio
import json
import logging
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from tests.benchmarks import (
    latency,
    plots,
    readers,
    recovery,
    remembered,
    replay,
    report,
    throughput,
    whole_path,
    workers,
)
from tests.benchmarks.load import EVENTS_EACH

RESULTS = Path(__file__).parent / "results"
FIGURES = "streams.json"
TABLE = "streams.md"


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the measurements."""

    trajectories: int
    """Trajectories in the log for events → trajectories."""
    scored: int
    """Trajectories for the Faust workers and for replays."""
    read: int
    """Trajectories of the log that ledger, tail and diff read."""
    flow_s: float
    """Length of the flow whose latency is measured, in seconds."""
    path: int
    """Trajectories through all processes, ClickHouse included."""
    path_rounds: int
    """Samples of the whole path."""
    open_events: int
    """Events of unfinished trajectories when a process is killed."""
    remembered: int
    """Closed trajectories of one partition that a restart has to read."""
    rounds: int
    """Samples of each row; the table has their medians."""
    assembled_rounds: int
    """Samples of each row of events → trajectories: ratios of its rows need a dozen."""
    warm_s: float | None
    """Seconds of warm-up of its contenders; ``None``: a third of the load."""
    before: Path | None = None
    """A checkout whose processes walk the whole path, too."""


FULL = Size(
    trajectories=600_000,
    scored=64_000,
    read=120_000,
    flow_s=40,
    path=40_000,
    path_rounds=3,
    open_events=100_000,
    remembered=remembered.FULL,
    rounds=5,
    assembled_rounds=12,
    warm_s=15.0,
)
QUICK = Size(
    trajectories=80_000,
    scored=12_000,
    read=4_000,
    flow_s=10,
    path=4_000,
    path_rounds=1,
    open_events=100_000,
    remembered=2_000,
    rounds=1,
    assembled_rounds=1,
    warm_s=None,
)

_QUIET = 1.0
"""Load average above which other programs use the machine."""

Figures = dict[str, Any]
Say = Callable[[str], None]


async def _latency(size: Size, figures: Figures, say: Say) -> Figures:
    return await latency.measure(half_load(figures), size.flow_s, say)


MEASUREMENTS: Mapping[str, Callable[[Size, Figures, Say], Awaitable[Figures]]] = {
    "throughput": lambda size, _, say: throughput.measure(
        size.trajectories, size.assembled_rounds, say, warm_s=size.warm_s
    ),
    "workers": lambda size, _, say: workers.measure(size.scored, size.rounds, say),
    "recovery": lambda size, _, say: recovery.measure(size.open_events, size.rounds, say),
    "remembered": lambda size, _, say: remembered.measure(size.remembered, size.rounds, say),
    "replay": lambda size, _, say: replay.measure(size.scored, size.rounds, say),
    "readers": lambda size, _, say: readers.measure(size.read, say),
    "whole_path": lambda size, _, say: whole_path.measure(size.path, size.path_rounds, say, before=size.before),
    "latency": _latency,
}
"""Measurements in order: latency needs the rate of the whole path."""


def half_load(figures: Figures) -> float:
    """Half the rate of the whole path on this machine, with generator, broker, sink and ClickHouse, in events per
    second; raises ``ValueError`` if unknown.
    """
    try:
        path = figures["whole_path"]
    except KeyError as missing:
        raise ValueError(f"latency is measured at half load: measure {missing} first, in the same folder") from None
    return median(path["trajectories"] * EVENTS_EACH / sample["wall_s"] for sample in path["samples"]) / 2


def machine() -> Figures:
    """Description of the machine and the run."""
    return {
        "cpu": next(
            (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
            platform.processor(),
        ),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 1),
    }


def _progress(name: str, line: str) -> None:
    print(f"{name}: {line}", file=sys.stderr, flush=True)


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def write(figures: Figures, out: Path) -> None:
    """Figures, table and plots into ``out``."""
    (out / FIGURES).write_text(json.dumps(figures, indent=1) + "\n")
    (out / TABLE).write_text(report.markdown(figures))
    plots.draw(figures, out)


async def run(only: list[str], size: Size, out: Path, command: str) -> None:
    """Measure, and write figures, table and plots into ``out`` after each measurement."""
    out.mkdir(parents=True, exist_ok=True)
    stored = out / FIGURES
    figures: Figures = json.loads(stored.read_text()) if stored.exists() else {}
    for name in only:
        about = {"machine": machine(), "date": datetime.now(UTC).strftime("%Y-%m-%d"), "command": command}
        begun = time.monotonic()
        figures[name] = await MEASUREMENTS[name](size, figures, partial(_progress, name))
        figures[name] |= {"about": about | {"took_s": round(time.monotonic() - begun)}}
        write(figures, out)


def main() -> None:
    """Measure as the options say; print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of a small load, as a smoke test")
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(MEASUREMENTS)}")
    parser.add_argument("--rounds", type=int, help="samples of each row; default: 5, and 12 for throughput")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for table, plots and raw figures")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout on the whole path")
    options = parser.parse_args()
    only = options.only.split(",") if options.only else list(MEASUREMENTS)
    if unknown := set(only) - MEASUREMENTS.keys():
        parser.error(f"there is no measurement {', '.join(sorted(unknown))}: there are {', '.join(MEASUREMENTS)}")
    logging.basicConfig(level="ERROR")
    # The client logs topics that are being created or deleted as errors.
    logging.getLogger("aiokafka").setLevel("CRITICAL")
    if os.getloadavg()[0] > _QUIET:
        _progress("warning", f"something else uses this machine (load {os.getloadavg()[0]:.1f}): figures will be low")
    command = " ".join(
        ["python -m tests.benchmarks.streams", *(["--quick"] if options.quick else []),
         *([f"--only {options.only}"] if options.only else []),
         *([f"--rounds {options.rounds}"] if options.rounds else []),
         *(["--before CHECKOUT"] if options.before else [])]
    )  # fmt: skip
    size = replace(QUICK if options.quick else FULL, before=options.before)
    if options.rounds:
        size = replace(size, rounds=options.rounds, assembled_rounds=options.rounds, path_rounds=options.rounds)
    asyncio.run(run(only, size, options.out, command))
    print((options.out / TABLE).read_text())


if __name__ == "__main__":
    main()
