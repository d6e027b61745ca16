"""How late each hack is noticed, and how often honest runs alarm: the tables of streams/watch/README.md.

    python -m tests.experiments.monitors                         200 runs: hacks on a fast ramp (60 steps), honest runs
    python -m tests.experiments.monitors --runs 20               a tenth of it
    python -m tests.experiments.monitors --drifts --steps 80     the changes that are no hacks
    python -m tests.experiments.monitors --only hacks --ramp 200 --steps 130     a slow ramp
    python -m tests.experiments.monitors --tables A.json B.json  the tables of results that --json has written

Attempts are simulated (``streams/watch/planted``); windows are judged by the function that the processor uses. A run
begins with 50 honest steps. Then each hack rises to 90 % of the attempts within the ramp, from the state that the
honest steps left. A delay is the number of steps from the first hacked one to the alarm, both included.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from headrace.schemas.records.alert import Alert, EpisodeState
from headrace.schemas.records.watch import Lane
from headrace.streams.rewards.schedule import linear
from headrace.streams.watch.judgement import WatchRules, conclude
from headrace.streams.watch.key_state import KeyState
from headrace.streams.watch.monitors import MONITORS
from headrace.streams.watch.planted.attempts import LAMBDA, SPEC, Attempt, honest_step
from headrace.streams.watch.planted.drifts import DRIFTS
from headrace.streams.watch.planted.hacks import HACKS, Hack, hacked_step, share_at
from headrace.streams.watch.planted.observations import (
    FEEDBACK_KEY,
    SOURCE,
    attempt_row,
    fate_key,
    fate_row,
    feedback_row,
    keys,
    reward_row,
)
from headrace.streams.watch.window import LARGEST_WITHOUT_VERSION, LEAST, Key, Row

HONEST_START = 50
"""Honest steps before a hack."""
RULES = WatchRules({SPEC: {"parallel": linear(1.0, 0.0, until=LAMBDA.until)}})


ATTEMPTS, INPUTS, REWARDS = keys("simulated")
FATES = fate_key("simulated")


@dataclass(slots=True)
class Monitored:
    """A run and the state of its monitors."""

    states: dict[Key, KeyState] = field(
        default_factory=lambda: {key: KeyState(key) for key in (ATTEMPTS, INPUTS, REWARDS, FATES, FEEDBACK_KEY)}
    )
    waiting: dict[Key, list[Row]] = field(default_factory=dict)
    """Rows of the windows that are open."""

    def after(self, attempts: Sequence[Attempt], version: int) -> tuple["Monitored", list[Alert]]:
        """The run after a step with ``attempts``, and the alerts about it.

        A window of attempts and of rewards is a step, or several with 32 rows together; others have 64 rows.
        """
        made = [each for each in attempts if not each.evaluates]
        acted = [attempt_row(each, version) for each in made]
        new = {
            ATTEMPTS: [row for row in acted if row.task_source == SOURCE],
            INPUTS: acted,
            REWARDS: [reward_row(each, version) for each in attempts if each.source == SOURCE],
            FATES: [fate_row(each, version) for each in made],
            FEEDBACK_KEY: [feedback_row(each, version) for each in made if each.feedback],
        }
        states, waiting, alerts = dict(self.states), {}, []
        for key, rows in new.items():
            open_ = [*self.waiting.get(key, []), *rows]
            by_version = key.lane in (Lane.ATTEMPT, Lane.REWARD)
            while len(open_) >= (LEAST if by_version else LARGEST_WITHOUT_VERSION):
                size = len(open_) if by_version else LARGEST_WITHOUT_VERSION
                concluded = conclude(states[key], open_[:size], RULES)
                states[key], open_ = concluded.state, open_[size:]
                alerts += concluded.alerts
            waiting[key] = open_
        return Monitored(states, waiting), alerts


def opened(alerts: Iterable[Alert]) -> list[str]:
    """The monitors that began to alarm."""
    return [each.episode.monitor for each in alerts if each.episode and each.episode.state is EpisodeState.OPENED]


def planted(run: Monitored, hack: Hack, *, seed: int, ramp: int, steps: int) -> dict[str, int]:
    """The delay of each monitor that alarms within ``steps`` of ``hack``."""
    random = Random(f"{hack.name}/{seed}/{ramp}")
    delays: dict[str, int] = {}
    for step in range(steps):
        version = HONEST_START + step
        attempts = hacked_step(random, hack, version, share_at(step, ramp), begun=HONEST_START)
        run, alerts = run.after(attempts, version)
        for name in opened(alerts):
            delays.setdefault(name, step + 1)
    return delays


def measure_hacks(
    runs: int, ramp: int, steps: int, first_seed: int = 0, changes: Mapping[str, Hack] = HACKS
) -> dict[str, list[dict[str, int]]]:
    """The delays by monitor, of each run, by hack, or by another of ``changes``."""
    found: dict[str, list[dict[str, int]]] = {name: [] for name in changes}
    for seed in range(first_seed, first_seed + runs):
        random, run = Random(f"honest/{seed}"), Monitored()
        for version in range(HONEST_START):
            run, _ = run.after(honest_step(random, version), version)
        for name, hack in changes.items():
            found[name].append(planted(run, hack, seed=seed, ramp=ramp, steps=steps))
    return found


def measure_honest(runs: int, steps: int, first_seed: int = 0) -> Counter[str]:
    """The number of episodes that honest runs open, by monitor."""
    false: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + runs):
        random, run = Random(f"false/{seed}"), Monitored()
        for version in range(steps):
            run, alerts = run.after(honest_step(random, version), version)
            false.update(opened(alerts))
    return false


def first_alarms(delays: Sequence[dict[str, int]], steps: int) -> list[int]:
    """The delay of the first alarm of each run; ``steps + 1`` if there was none."""
    return [min(each.values(), default=steps + 1) for each in delays]


def table(found: dict[str, list[dict[str, int]]], ramp: int, steps: int) -> list[str]:
    """The table of delays, as Markdown."""
    lines = [
        "| hack | first monitor | median | p90 | latest | share then | missed | others, median |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in found.items():
        first = sorted(first_alarms(runs, steps))
        by_monitor = {
            monitor: [each.get(monitor, steps + 1) for each in runs]
            for monitor in sorted({monitor for each in runs for monitor in each})
        }
        medians = sorted((median(delays), monitor) for monitor, delays in by_monitor.items())
        leading = [f"`{monitor}` {middle:g}" for middle, monitor in medians if middle <= steps]
        middle = median(first)
        missed = sum(delay > steps for delay in first)
        lines.append(
            f"| {name} | `{medians[0][1] if medians else '–'}` | {middle:g} | {first[int(0.9 * len(first))]} | "
            f"{first[-1]} | {100 * share_at(int(middle) - 1, ramp):.0f} % | {missed} | {', '.join(leading[1:5])} |"
        )
    return lines


def monitor_table(found: dict[str, list[dict[str, int]]], false: dict[str, int], honest_steps: int) -> list[str]:
    """The table of monitors, as Markdown: which hacks each sees in at least half of the runs, and its false alarms."""
    alarming = [each.name for lane in MONITORS for each in MONITORS[lane] if each.rule]
    rows: dict[str, list[tuple[float, str]]] = {name: [] for name in (*alarming, *false)}
    for hack, runs in found.items():
        for monitor in sorted({monitor for each in runs for monitor in each}):
            delays = [each[monitor] for each in runs if monitor in each]
            seen = rows.setdefault(monitor, [])
            if 2 * len(delays) >= len(runs):
                seen.append((median(delays), hack))
    lines = [
        f"| monitor | hacks that it sees (median delay) | false alarms in {honest_steps:,} steps |",
        "|---|---|---|",
    ]
    for monitor, seen in sorted(rows.items()):
        hacks = ", ".join(f"{hack} {delay:g}" for delay, hack in sorted(seen)) or "–"
        lines.append(f"| `{monitor}` | {hacks} | {false.get(monitor, 0)} |")
    return lines


def tables(results: Sequence[dict[str, Any]]) -> list[str]:
    """The tables of several results: of delays for each ramp, and one of all monitors on the fastest ramp."""
    by_ramp: dict[tuple[int, int], dict[str, list[dict[str, int]]]] = {}
    false: Counter[str] = Counter()
    honest = 0
    for each in results:
        merged = by_ramp.setdefault((each["ramp"], each["steps"]), {})
        for name, runs in each.get("hacks", {}).items():
            merged.setdefault(name, []).extend(runs)
        false.update(each.get("false", {}))
        honest += each.get("honest_steps", 0)
    lines: list[str] = []
    seen: dict[str, list[dict[str, int]]] = {}
    for (ramp, steps), found in sorted(by_ramp.items()):
        if found:
            count = min(map(len, found.values()))
            lines += [f"ramp {ramp}, {count} runs, {steps} steps", *table(found, ramp, steps), ""]
            seen |= {name: runs for name, runs in found.items() if name not in seen}
    lines += monitor_table(seen, false, honest)
    return [*lines, f"{false.total()} false alarms in {honest:,} honest steps: {dict(false.most_common())}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0, help="thresholds were chosen on seeds 0 to 9")
    parser.add_argument("--ramp", type=int, default=60)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--honest-steps", type=int, default=350)
    parser.add_argument("--drifts", action="store_true", help="changes that are no hacks, instead of the hacks")
    parser.add_argument("--only", choices=["hacks", "honest"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tables", type=Path, nargs="+", metavar="FILE", help="print tables of these results only")
    options = parser.parse_args(arguments)
    if options.tables:
        print("\n".join(tables([json.loads(path.read_text()) for path in options.tables])))
        return 0
    result: dict[str, Any] = {"runs": options.runs, "ramp": options.ramp, "steps": options.steps}
    if options.only != "honest":
        changes = DRIFTS if options.drifts else HACKS
        found = measure_hacks(options.runs, options.ramp, options.steps, options.first_seed, changes)
        result["hacks"] = found
        print("\n".join(table(found, options.ramp, options.steps)), flush=True)
    if options.only != "hacks":
        false = measure_honest(options.runs, options.honest_steps, options.first_seed)
        steps = options.runs * options.honest_steps
        result |= {"false": dict(false), "honest_steps": steps}
        if options.only is None:
            print("\n".join(monitor_table(found, result["false"], steps)))
        print(f"{false.total()} false alarms in {steps:,} honest steps: {dict(false.most_common())}")
    if options.json:
        options.json.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
