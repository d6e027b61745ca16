"""A baseline pinned to another run: a key begins with what the same key of that run learnt in its first windows.

    run-a  learns: talks 0.05 ± 0.02         run-b, pinned to run-a:  talks 0.31 → effect 13 in its first window

Taken are charts, which keep the mean and the spread of the first windows, what was paid besides each component in them,
the offsets of difficulties that lengths are compared without, and the sample of totals. What follows a run instead of
staying (usual shares of labels, ADWIN's windows), and what counts within a run (tripwires, first weights) begins anew.
"""

from dataclasses import replace

from headrace.streams.watch.chart import learnt
from headrace.streams.watch.key_state import KeyState
from headrace.streams.watch.measures import SHARED
from headrace.streams.watch.monitors import COMPONENT, rule_of
from headrace.streams.watch.window import Key

BASELINE_WINDOWS = 25
"""Windows in which a baseline is learnt."""


def has_baseline(state: KeyState) -> bool:
    """Whether the key of ``state`` no longer learns its baseline."""
    return state.window >= BASELINE_WINDOWS or bool(state.baseline_of)


def has_samples(state: KeyState) -> bool:
    """Whether the baseline's samples of single trajectories of the key of ``state`` are complete."""
    if state.sampled_from is None:
        return has_baseline(state)
    return state.window >= state.sampled_from + BASELINE_WINDOWS


def begun(key: Key, time_ms: int, other: KeyState | None = None) -> KeyState:
    """Returns the state of a new ``key``, with the baseline of ``other``, the same key of another run, if that has one.
    ``time_ms``: stream time of its first observation."""
    if other is None or not has_baseline(other):
        return KeyState(key, time_ms)
    charts = {
        name: replace(chart, mean=chart.pinned, up=0.0, down=0.0, last=None, since=0, recent=None)
        for name, chart in other.charts.items()
        if name not in SHARED and (rule := rule_of(name)) is not None and learnt(chart, rule)
    }
    rests = {name: rest for name, rest in other.pinned_rests.items() if COMPONENT + name in charts}
    return KeyState(
        key,
        time_ms,
        charts=charts,
        # What is compared by ADWIN, or not learnt yet, begins anew, and so do its offsets.
        offsets={name: each for name, each in other.offsets.items() if name in charts},
        rests=rests,
        pinned_rests=rests,
        samples=other.samples if has_samples(other) else {},
        sampled_from=None if has_samples(other) else 0,
        baseline_of=other.key.run,
    )
