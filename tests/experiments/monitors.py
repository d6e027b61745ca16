"""How late each hack is noticed, and how often honest runs alarm: the tables of streams/watch/MEASURED.md.

    python -m tests.experiments.monitors                         200 runs: hacks on a fast ramp (60 steps), honest runs
    python -m tests.experiments.monitors --runs 20               a tenth of it
    python -m tests.experiments.monitors --drifts --steps 80     the changes that are no hacks
    python -m tests.experiments.monitors --only hacks --ramp 200 --steps 130     a slow ramp
    python -m tests.experiments.monitors --only hacks --hack serial-collapse     one of them alone
    python -m tests.experiments.monitors --tables A.json B.json  the tables of results that --json has written

Attempts are simulated (``streams/watch/planted``); windows are judged by the function that the processor uses. A run
begins with 50 honest steps. Then each hack rises to 90 % of the attempts within the ramp, from the state that the
honest steps left, while the honest run goes on to its end. All hacks of a run change the same honest attempts, so the
rows of those that they leave alone are made once. A delay is the number of steps from the first hacked one to the
alarm, both included.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil, exp, factorial, floor, sqrt
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from headrace.deploy.watching.plant import RULES
from headrace.schemas.records.alert import Alert, EpisodeState
from headrace.schemas.records.watch import Lane
from headrace.streams.watch.judgement import conclude
from headrace.streams.watch.key_state import KeyState
from headrace.streams.watch.monitors import MONITORS
from headrace.streams.watch.planted.attempts import Attempt, honest_step
from headrace.streams.watch.planted.drifts import DRIFTS, PLANTED
from headrace.streams.watch.planted.hacks import HACKS, Hack, hacked, share_at
from headrace.streams.watch.planted.observations import (
    SOURCE,
    attempt_row,
    fate_key,
    fate_row,
    feedback_key,
    feedback_row,
    keys,
    reward_row,
)
from headrace.streams.watch.window import LARGEST_WITHOUT_VERSION, LEAST, Key, Row

HONEST_START = 50
"""Honest steps before a hack."""


ATTEMPTS, INPUTS, REWARDS = keys("simulated")
FATES = fate_key("simulated")
FEEDBACK = feedback_key("simulated")


class AttemptRows(NamedTuple):
    """The rows of an attempt; of an evaluation only that of its reward, of another task source only its inputs."""

    reward: Row | None
    acted: Row | None
    fate: Row | None
    feedback: Row | None


class Rows:
    """The rows of attempts, made once for each: hacks share the honest attempts of a run."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Attempt, AttemptRows]] = {}

    def of(self, attempt: Attempt, version: int, *, keep: bool) -> AttemptRows:
        """Returns the rows of ``attempt``. ``keep``: whether it will be asked for again, and so must stay."""
        known = self._known.get(id(attempt))
        if known is not None:
            return known[1]
        counts = attempt.source == SOURCE and not attempt.evaluates
        made = AttemptRows(
            reward_row(attempt, version) if attempt.source == SOURCE else None,
            None if attempt.evaluates else attempt_row(attempt, version),
            fate_row(attempt, version) if counts else None,
            feedback_row(attempt, version) if attempt.feedback and counts else None,
        )
        if keep:
            self._known[id(attempt)] = attempt, made
        return made


@dataclass(slots=True)
class Monitored:
    """A run and the state of its monitors."""

    states: dict[Key, KeyState] = field(
        default_factory=lambda: {key: KeyState(key) for key in (ATTEMPTS, INPUTS, REWARDS, FATES, FEEDBACK)}
    )
    waiting: dict[Key, list[Row]] = field(default_factory=dict)
    """Rows of the windows that are open."""

    def after(self, rows: Sequence[AttemptRows]) -> tuple["Monitored", list[Alert]]:
        """The run after a step with the attempts of ``rows``, and the alerts about it.

        A window of attempts and of rewards is a step, or several with 32 rows together; others have 64 rows.
        """
        acted = [each.acted for each in rows if each.acted]
        new = {
            ATTEMPTS: [row for row in acted if row.task_source == SOURCE],
            INPUTS: acted,
            REWARDS: [each.reward for each in rows if each.reward],
            FATES: [each.fate for each in rows if each.fate],
            FEEDBACK: [each.feedback for each in rows if each.feedback],
        }
        states, waiting, alerts = dict(self.states), {}, []
        for key, made in new.items():
            open_ = [*self.waiting.get(key, []), *made]
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


def planted(
    run: Monitored, hack: Hack, steps: Sequence[Sequence[Attempt]], rows: Rows, *, seed: int, ramp: int
) -> dict[str, int]:
    """The delay of each monitor that alarms while ``hack`` rises in the honest ``steps``."""
    random = Random(f"{hack.name}/{seed}/{ramp}")
    delays: dict[str, int] = {}
    for step, attempts in enumerate(steps):
        version = HONEST_START + step
        honest = set(map(id, attempts))
        mixed = hacked(random, hack, attempts, share_at(step, ramp), begun=HONEST_START)
        run, alerts = run.after([rows.of(each, version, keep=id(each) in honest) for each in mixed])
        for name in opened(alerts):
            delays.setdefault(name, step + 1)
    return delays


@dataclass(slots=True)
class Found:
    """What the monitors said about all runs."""

    hacks: dict[str, list[dict[str, int]]]
    """The delays by monitor, of each run, by hack, or by another change."""
    false: Counter[str] = field(default_factory=Counter)
    """The number of episodes that honest steps opened, by monitor."""
    honest_steps: int = 0
    """Honest steps."""


def measure(
    seeds: Iterable[int],
    ramp: int,
    steps: int,
    honest_steps: int,
    changes: Mapping[str, Hack] = HACKS,
    report: Callable[[str], None] = lambda _: None,
) -> Found:
    """Run each seed: honestly for ``honest_steps`` steps, and from its 50th on with each of ``changes`` for ``steps``
    steps. ``report`` gets a line after each run."""
    found = Found({name: [] for name in changes})
    for seed in seeds:
        random, run, rows = Random(f"honest/{seed}"), Monitored(), Rows()
        end = max(HONEST_START if changes else 0, honest_steps)
        for version in range(end + 1):
            if version == HONEST_START and changes:
                base, shared = Random(f"planted/{seed}"), Rows()
                attempts = [honest_step(base, HONEST_START + step) for step in range(steps)]
                for name, hack in changes.items():
                    found.hacks[name].append(planted(run, hack, attempts, shared, seed=seed, ramp=ramp))
            if version == end:
                break
            run, alerts = run.after([rows.of(each, version, keep=False) for each in honest_step(random, version)])
            found.false.update(opened(alerts))
            found.honest_steps += 1
        report(f"seed {seed}: {found.honest_steps:,} honest steps, false alarms {dict(found.false)}")
    return found


def first_alarms(delays: Sequence[dict[str, int]], steps: int) -> list[int]:
    """The delay of the first alarm of each run; ``steps + 1`` if there was none."""
    return [min(each.values(), default=steps + 1) for each in delays]


def middle_of(delays: Sequence[int]) -> str:
    """The median of ``delays``, with its 95 % interval from the order of the values (binomial, as a normal)."""
    ordered, n = sorted(delays), len(delays)
    half = 0.98 * sqrt(n)
    low, high = ordered[max(0, floor(n / 2 - half))], ordered[min(n - 1, ceil(n / 2 + half) - 1)]
    return f"{median(ordered):g}" + (f" ({low}–{high})" if n >= 20 else "")


def at_most(count: int, steps: int) -> float:
    """The upper end of the 95 % interval (one-sided) of a rate in 10,000 steps, of ``count`` Poisson events in
    ``steps``."""
    low, high = 0.0, count + 10.0 * sqrt(count + 1.0)
    for _ in range(60):
        middle = (low + high) / 2
        below = sum(exp(-middle) * middle**each / factorial(each) for each in range(count + 1))
        low, high = (middle, high) if below > 0.05 else (low, middle)
    return 10_000 * high / steps


def table(found: dict[str, list[dict[str, int]]], ramp: int, steps: int) -> list[str]:
    """The table of delays, as Markdown. A run without an alarm counts as ``steps + 1``."""
    lines = [
        "| planted | first monitor | median (95 %) | p90 | latest | share then | missed | next four, median |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in found.items():
        first = sorted(first_alarms(runs, steps))
        medians = medians_of(runs, steps)
        leading = [f"`{monitor}` {middle:g}" for middle, monitor in medians]
        middle = median(first)
        missed = sum(delay > steps for delay in first)
        lines.append(
            f"| {name} | `{medians[0][1] if medians else '–'}` | {middle_of(first)} | {first[int(0.9 * len(first))]} | "
            f"{first[-1]} | {100 * share_at(int(middle) - 1, ramp):.0f} % | {missed} | {', '.join(leading[1:5])} |"
        )
    return lines


def medians_of(runs: Sequence[dict[str, int]], steps: int) -> list[tuple[float, str]]:
    """The median delay of each monitor, the least first. A run in which it did not alarm counts as ``steps + 1``; a
    monitor that alarmed in fewer than half of them is left out."""
    monitors = sorted({monitor for each in runs for monitor in each})
    medians = [(median([each.get(monitor, steps + 1) for each in runs]), monitor) for monitor in monitors]
    return sorted(each for each in medians if each[0] <= steps)


Seen: TypeAlias = dict[str, tuple[int, list[dict[str, int]]]]
"""Steps, and the delays by monitor of each run, by hack or other change."""


def monitor_table(found: Seen, false: dict[str, int], honest_steps: int) -> list[str]:
    """The table of monitors, as Markdown: which hacks each sees in at least half of the runs, and its false alarms."""
    alarming = [each.name for lane in MONITORS for each in MONITORS[lane] if each.alarms]
    rows: dict[str, list[tuple[float, str]]] = {name: [] for name in (*alarming, *false)}
    for hack, (steps, runs) in found.items():
        for delay, monitor in medians_of(runs, steps):
            rows.setdefault(monitor, []).append((delay, hack))
    lines = [
        f"| monitor | what it sees (median delay) | false alarms in {honest_steps:,} steps |",
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
    seen: Seen = {}
    for (ramp, steps), found in sorted(by_ramp.items()):
        if found:
            count = min(map(len, found.values()))
            lines += [f"ramp {ramp}, {count} runs, {steps} steps", *table(found, ramp, steps), ""]
            seen |= {name: (steps, runs) for name, runs in found.items() if name not in seen}
    lines += monitor_table(seen, false, honest)
    return [*lines, summary(false, honest)] if honest else lines


def summary(false: Counter[str], honest_steps: int) -> str:
    """A sentence on the false alarms."""
    return (
        f"{false.total()} false alarms in {honest_steps:,} honest steps, at most "
        f"{at_most(false.total(), honest_steps):.2g} in 10,000 (95 %): {dict(false.most_common())}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0, help="thresholds were chosen on seeds 0 to 9")
    parser.add_argument("--ramp", type=int, default=60)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--honest-steps", type=int, default=350, help="of each run; not with --only hacks")
    parser.add_argument("--drifts", action="store_true", help="changes that are no hacks, instead of the hacks")
    parser.add_argument("--only", choices=["hacks", "honest"])
    parser.add_argument("--hack", metavar="NAME", choices=PLANTED, help="this hack or other change alone")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tables", type=Path, nargs="+", metavar="FILE", help="print tables of these results only")
    options = parser.parse_args(arguments)
    if options.tables:
        print("\n".join(tables([json.loads(path.read_text()) for path in options.tables])))
        return 0
    seeds = range(options.first_seed, options.first_seed + options.runs)
    if options.hack:
        changes: Mapping[str, Hack] = {options.hack: PLANTED[options.hack]}
    else:
        changes = {} if options.only == "honest" else DRIFTS if options.drifts else HACKS
    honest_steps = HONEST_START if options.only == "hacks" else options.honest_steps
    found = measure(
        seeds, options.ramp, options.steps, honest_steps, changes, partial(print, file=sys.stderr, flush=True)
    )
    result = {
        "runs": options.runs,
        "ramp": options.ramp,
        "steps": options.steps,
        "hacks": found.hacks,
        "false": dict(found.false),
        "honest_steps": 0 if options.only == "hacks" else found.honest_steps,
    }
    print("\n".join(tables([result])))
    if options.json:
        options.json.write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
