"""The page of ``swarm_arms.py``: its tables and its picture, from the values of finished runs.

text, figure = page({"annealed": [Run("annealed", 0, steps=[{"reward": 0.4, "λ1": 0.3, …}, …], …)], …})
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from headrace.agents.swarm.tasks import Source, Split, make_task, task_id
from headrace.streams.rewards.swarm import ARMS
from tests.experiments.page import COLOURS, new_figure, table
from tests.simulator.swarm_player import WAYS, play_scripted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAST = 10
"""Steps at the end of a run over which training values are averaged."""
SMOOTHED = 5
"""Steps over which curves are averaged."""
WANTED = 0.4
"""Item F1 to which the time is counted."""
EQUAL = {"wide": 0.4, "deep": 0.6}
"""Item F1 and accuracy at which tokens are compared."""
HELD_OUT_TASKS = 96
"""Held-out tasks of an evaluation."""
TASKS = 240
"""Held-out tasks of the players without mistakes."""
SHAPED = ("none", "never-annealed", "parallel-only")
"""Arms whose rewards do not depend on the policy version."""


@dataclass(slots=True)
class Run:
    """One arm with one seed, as plain values."""

    arm: str
    seed: int
    steps: list[dict[str, float]] = field(default_factory=list)
    """Values of the attempts of each step."""
    before: dict[str, float] = field(default_factory=dict)
    """Held-out tasks, sampled, by the base model."""
    after: dict[str, float] = field(default_factory=dict)
    """Held-out tasks, sampled, after the last step."""
    greedy_before: dict[str, float] = field(default_factory=dict)
    greedy_after: dict[str, float] = field(default_factory=dict)


Runs = Mapping[str, Sequence[Run]]
"""Arm → its runs, one for each seed."""


def mean_of(steps: Sequence[Mapping[str, float]], name: str) -> float | None:
    """Mean of a value over the steps that have it, as not each one has tasks of both kinds; ``None`` if none has."""
    values = [step[name] for step in steps if name in step]
    return fmean(values) if values else None


def last(run: Run, name: str, count: int = LAST) -> float:
    """Mean of a value over a run's last steps; 0 if it never occurred."""
    return mean_of(run.steps[-count:], name) or 0.0


def reached(run: Run, name: str, wanted: float) -> int | None:
    """The number of steps after which the mean of a value over ``SMOOTHED`` steps is at least ``wanted``, if any."""
    for step in range(SMOOTHED, len(run.steps) + 1):
        mean = mean_of(run.steps[step - SMOOTHED : step], name)
        if mean is not None and mean >= wanted:
            return step
    return None


def what_pays(tasks: int = TASKS) -> list[str]:
    """Return the paragraphs on the rewards of scripted players without mistakes on ``tasks`` held-out tasks."""
    held_out = [make_task(task_id(Split.HELD_OUT, number)) for number in range(tasks)]
    rows = []
    for source in Source:
        for name, way in WAYS.items():
            played = {
                arm: [play_scripted(task, way, ARMS[arm]) for task in held_out if task.source is source]
                for arm in SHAPED
            }
            rewards = [fmean(episode.reward() for episode in of) for of in played.values()]
            critical = fmean(episode.harness.critical_steps + 1 for episode in played["none"])
            rows.append([f"{source}: {name}", *(f"{value:.2f}" for value in rewards), f"{critical:.1f}"])
    head = ["the player's sub-tasks", "outcome, which is the reward without shaping and after the anneal",
            "reward with λ as at the start", "with r_parallel alone", "critical steps"]  # fmt: skip
    return [
        f"**What the rewards pay for.** Scripted players without mistakes (`tests/simulator/swarm_player.py`) assign "
        f"their sub-tasks in one turn, look up alone what is still missing, and answer; {tasks} held-out tasks:",
        table(head, rows),
        "So with shaping that is never annealed, the best way to play a deep task is not the most accurate one: it "
        "assigns the first hop ten times. For wide tasks the most accurate way is also the best paid.",
    ]


def page(runs: Runs) -> tuple[list[str], "Figure"]:
    """Return the paragraphs and the picture."""
    seeds = len(next(iter(runs.values())))
    of_seeds = "Seed 0" if seeds == 1 else f"Seeds 0 to {seeds - 1}: mean (least–largest)"
    return [
        f"**What is learnt**, from the base model of `agents/swarm`, in the simulator (`tests/simulator`) by the "
        f"trainer's own learner, {len(next(iter(runs.values()))[0].steps)} steps of 8 tasks × 8 attempts in 4 "
        f"sub-steps with the loss `kimi`. Scripted sub-agents complete 90 % of answerable sub-tasks. {of_seeds}. "
        f"Held-out: {HELD_OUT_TASKS} tasks after the last step, sampled at temperature 1, or greedy. Training: mean "
        f"of the last {LAST} steps.",
        _outcomes(runs),
        "What the reward pays in training, by kind of task. A policy with a larger reward and a smaller outcome is the "
        "published failure:",
        _rewards(runs),
        "What the policies do on held-out tasks, sampled. *Finished*: share of the assigned sub-tasks that completed.",
        _effort(runs),
        f"Time until the training mean of item F1 over {SMOOTHED} steps is {WANTED}. Scripted sub-agents take no time, "
        "so the clock is simulated: every model call, also of a sub-agent, takes one second, the attempts of a step "
        "run side by side, and the step takes as long as its longest attempt: its critical steps if the sub-agents of "
        "a turn run concurrently, its total steps if they run one after another. Over the runs that reach it.",
        _clock(runs),
        f"Tokens at equal accuracy: sampled tokens of an attempt over the {SMOOTHED} steps in which the training mean "
        f"first reaches an item F1 of {EQUAL['wide']} on wide tasks, and an accuracy of {EQUAL['deep']} on deep ones.",
        _tokens(runs),
        "The weights λ1, λ2 by step:",
        _weights(runs),
        f"The picture: training values, means over the last {SMOOTHED} steps and over the seeds; the bands go from the "
        "least to the largest seed.",
    ], _figure(runs)


def _cell(values: Sequence[float], digits: int = 2) -> str:
    spread = f" ({min(values):.{digits}f}–{max(values):.{digits}f})" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


def _outcomes(runs: Runs) -> str:
    first = next(iter(runs.values()))
    rows = [
        ["base model", *(_cell([getattr(run, when)[f"{source} outcome"] for run in first])
                         for source in Source for when in ("before", "greedy_before"))]
    ]  # fmt: skip
    rows += [
        [arm, *(_cell([getattr(run, when)[f"{source} outcome"] for run in of])
                for source in Source for when in ("after", "greedy_after"))]
        for arm, of in runs.items()
    ]  # fmt: skip
    head = ["held-out", "wide: item F1, sampled", "greedy", "deep: accuracy, sampled", "greedy"]
    return table(head, rows)


def _rewards(runs: Runs) -> str:
    names = [
        "reward",
        *(f"{source} {name}" for source in Source for name in ("reward", "outcome", "parallel", "finish")),
    ]
    head = ["training, at the end", "mean reward", "wide: reward", "item F1", "r_parallel", "r_finish",
            "deep: reward", "accuracy", "r_parallel", "r_finish"]  # fmt: skip
    return table(head, [[arm, *(_cell([last(run, name) for run in of]) for name in names)] for arm, of in runs.items()])


def _effort(runs: Runs) -> str:
    names = [f"{source} {name}" for source in Source for name in ("spawns", "finished", "critical", "total", "tokens")]
    head = ["", *(f"{source}: {name}" if name == "sub-tasks" else name for source in Source
                  for name in ("sub-tasks", "finished", "critical steps", "total steps", "tokens"))]  # fmt: skip

    def row(values: Sequence[Mapping[str, float]]) -> list[str]:
        return [
            _cell([each.get(name, 0.0) for each in values], 2 if name.endswith("finished") else 1) for name in names
        ]

    return table(
        head,
        [
            ["base model", *row([run.before for run in next(iter(runs.values()))])],
            *([arm, *row([run.after for run in of])] for arm, of in runs.items()),
        ],
    )


def _clock(runs: Runs) -> str:
    rows = []
    for arm, of in runs.items():
        found = [(run, step) for run in of if (step := reached(run, "wide outcome", WANTED)) is not None]
        seconds = [
            [sum(each[f"longest {kind}"] for each in run.steps[:step]) for run, step in found]
            for kind in ("critical", "total")
        ]
        cells = [_cell([step for _, step in found], 0), *(_cell(each, 0) for each in seconds)] if found else ["–"] * 3
        rows.append([arm, f"{len(found)} of {len(of)}", *cells])
    return table(["", "runs that reach it", "steps", "seconds, concurrent", "seconds, one after another"], rows)


def _tokens(runs: Runs) -> str:
    rows = []
    for arm, of in runs.items():
        row = [arm]
        for source, wanted in EQUAL.items():
            steps = [(run, reached(run, f"{source} outcome", wanted)) for run in of]
            found = [mean_of(run.steps[at - SMOOTHED : at], f"{source} tokens") or 0.0 for run, at in steps if at]
            row += [f"{len(found)} of {len(of)}", _cell(found, 1) if found else "–"]
        rows.append(row)
    return table(["", "wide: runs that reach it", "tokens", "deep: runs that reach it", "tokens"], rows)


def _weights(runs: Runs) -> str:
    steps = len(next(iter(runs.values()))[0].steps)
    shown = sorted({*range(0, steps, max(1, steps // 10)), steps - 1})
    return table(
        ["", *map(str, shown)],
        [
            [arm, *(f"{of[0].steps[step]['λ1']:.2f}, {of[0].steps[step]['λ2']:.2f}" for step in shown)]
            for arm, of in runs.items()
        ],
    )


PANELS = (
    ("reward", "all: mean reward"),
    ("wide outcome", "wide: item F1"),
    ("deep outcome", "deep: accuracy"),
    ("λ1", "λ1"),
    ("wide parallel", "wide: r_parallel"),
    ("deep parallel", "deep: r_parallel"),
)
"""Value and title of each panel of the picture."""


def _figure(runs: Runs) -> "Figure":
    figure = new_figure()
    figure.set_size_inches(12, 6.5)
    for axis, (name, title) in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
        for arm, colour in zip(runs, COLOURS, strict=False):
            curves = [_smooth(run, name) for run in runs[arm]]
            by_step = list(zip(*curves, strict=True))
            axis.plot([fmean(values) for values in by_step], color=colour, label=arm)
            if len(curves) > 1:
                lowest, highest = [min(values) for values in by_step], [max(values) for values in by_step]
                axis.fill_between(range(len(by_step)), lowest, highest, color=colour, alpha=0.12, linewidth=0)
        axis.set(title=title, xlabel="step", ylim=(0, None))
    figure.axes[0].legend(fontsize=8)
    return figure


def _smooth(run: Run, name: str) -> list[float]:
    """Means over the last ``SMOOTHED`` steps; 0 where none of them has the value."""
    return [mean_of(run.steps[max(0, step - SMOOTHED + 1) : step + 1], name) or 0.0 for step in range(len(run.steps))]
