"""Shaping for sub-agents: none, annealed, never annealed, r_parallel only; and Toggle. Learnt from the base model.

python -m tests.experiments.swarm_arms [--seeds 3] [--steps 60] [--arms NAME …] [--results DIR]

Each finished run is kept as a JSON file in DIR, so that an interrupted experiment resumes with the next run.
"""

import json
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

import torch

from headrace.agents.swarm import vocabulary as words
from headrace.agents.swarm.tasks import Source, Split, make_task, task_id
from headrace.streams.grouping.group_policy import GroupPolicy
from headrace.streams.rewards.swarm import ARMS
from headrace.streams.rewards.toggle import Toggle, length_budgets
from headrace.trainer.model.load import load_model
from tests.experiments.page import COLOURS, new_figure, table, write
from tests.simulator.learn import Curve, Evaluation, LearnSettings, Step, learn, trainer_settings
from tests.simulator.sampling import Attempt, play
from tests.simulator.swarm import (
    FIRST_TRAINING_TASK,
    SwarmEpisode,
    held_out_episodes,
    sampling_settings,
    training_episodes,
)

BASE = Path(words.__file__).with_name("base")
STEPS, GROUPS, SUBSTEPS, TASKS_PER_SEED = 60, 16, 4, 1_000_000
TOGGLE = "annealed, Toggle"
NAMES = (*ARMS, TOGGLE)
LEARNING_RATE = 8e-4
TOGGLE_PERIOD, TOGGLE_PERCENTILE, TOGGLE_ACCURACY = 5, 50.0, 0.5


@dataclass(slots=True)
class Run:
    """One arm with one seed, as plain values."""

    arm: str
    seed: int
    steps: list[dict[str, float]] = field(default_factory=list)
    """Means over the attempts of each step."""
    before: dict[str, float] = field(default_factory=dict)
    """Held-out tasks, sampled, by the base model."""
    after: dict[str, float] = field(default_factory=dict)
    """Held-out tasks, sampled, after the last step."""
    greedy_before: dict[str, float] = field(default_factory=dict)
    greedy_after: dict[str, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    """Wall-clock seconds of each step."""


def measured(attempts: Sequence[Attempt[SwarmEpisode]]) -> dict[str, float]:
    """Returns the means that the page shows; rates of sub-agents are over those that were assigned."""
    episodes = [attempt.episode for attempt in attempts]
    found: dict[str, float] = {"reward": fmean(each.reward() for each in episodes)}
    for source in Source:
        some = [each for each in episodes if each.task.source is source]
        if not some:
            continue
        assigned = sum(each.harness.assigned for each in some)
        found |= {
            f"{source} outcome": fmean(each.outcome for each in some),
            f"{source} spawns": assigned / len(some),
            f"{source} critical": fmean(each.harness.critical_steps + 1 for each in some),
            f"{source} total": fmean(each.harness.turns + each.subagent_steps for each in some),
            f"{source} tokens": fmean(each.sampled for each in some),
        }
        if assigned:
            found[f"{source} finished"] = sum(each.finished for each in some) / assigned
    weights = episodes[0].score().components
    return found | {"λ1": weights["parallel"].weight, "λ2": weights["finish"].weight}


def run(arm: str, seed: int, steps: int = STEPS, *, held_out_tasks: int = 128, groups: int = GROUPS) -> Run:
    """Learn one arm from the base model; everything but the time depends on the arm and the seed alone."""
    spec = ARMS["annealed" if arm == TOGGLE else arm]
    model = load_model(BASE)
    first = FIRST_TRAINING_TASK + seed * TASKS_PER_SEED
    settings = LearnSettings(
        sampling_settings(rows=groups * 8),
        trainer=trainer_settings(
            learning_rate=LEARNING_RATE,
            steps=steps,
            groups_per_step=groups,
            substeps=SUBSTEPS,
            seed=seed,
            loss="kimi",
        ),
        maximum=spec.maximum,
        held_out_tasks=held_out_tasks,
    )
    if arm == TOGGLE:
        settings = replace(settings, policy=GroupPolicy(toggle=_toggle(model, settings, first, steps * groups)))
    curve = learn(
        model, training_episodes(spec, first=first), settings, held_out_episodes(spec), measured, report=_reported
    )
    return _plain(arm, seed, curve)


def _reported(each: Step | Evaluation) -> None:
    if isinstance(each, Step) and each.version % 5 == 0:
        shown = {name: round(value, 2) for name, value in each.values.items()}
        print(f"step {each.version}: {shown}", flush=True)


def _toggle(model: torch.nn.Module, settings: LearnSettings, first: int, tasks: int) -> Toggle:
    """Returns Toggle with length budgets from the base model. A task is attempted once, so the estimate is by class:
    tasks of one source with equally many lookups share a budget."""

    def key(number: int) -> str:
        task = make_task(task_id(Split.TRAIN, number))
        return f"{task.source} {len(task.evidence)}"

    spec = ARMS["none"]
    numbers = [number for number in range(512) for _ in range(2)]  # tasks of the demonstrations, never trained on
    episodes = [
        SwarmEpisode(make_task(task_id(Split.TRAIN, number)), spec=spec, member=f"budget/{place}")
        for place, number in enumerate(numbers)
    ]
    played = play(model, episodes, settings.sampling, seed=settings.trainer.seed)  # type: ignore[arg-type]
    lengths = [
        (key(number), attempt.episode.outcome, attempt.episode.sampled)
        for number, attempt in zip(numbers, played, strict=True)
    ]
    by_class = length_budgets(lengths, percentile=TOGGLE_PERCENTILE, solved=0.5)
    classes = {f"g-{number}": by_class.get(key(first + number)) for number in range(tasks)}
    budgets = {name: budget for name, budget in classes.items() if budget is not None}
    return Toggle(period=TOGGLE_PERIOD, accuracy=TOGGLE_ACCURACY, budgets=budgets)


def _plain(arm: str, seed: int, curve: Curve) -> Run:
    before, after = curve.held_out[0], curve.held_out[-1]
    return Run(
        arm,
        seed,
        [dict(step.values) for step in curve.steps],
        dict(before.sampled),
        dict(after.sampled),
        dict(before.greedy),
        dict(after.greedy),
        [round(sum(step.seconds), 3) for step in curve.steps],
    )


def kept(results: Path, arm: str, seed: int, steps: int) -> Run:
    """Returns the run, from its file if it has ended before."""
    path = results / f"{arm.replace(' ', '-').replace(',', '')}-{seed}-{steps}.json"
    if path.is_file():
        return Run(**json.loads(path.read_text()))
    began = time.monotonic()
    done = run(arm, seed, steps)
    results.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: getattr(done, name) for name in Run.__dataclass_fields__}))
    shown = ", ".join(f"{name} {done.after.get(name, 0):.2f}" for name in ("reward", "wide outcome", "deep outcome"))
    print(f"{arm}, seed {seed}: {shown} after {time.monotonic() - began:.0f} s", flush=True)
    return done


def last(run: Run, name: str, count: int = 10) -> float:
    """Mean of a value over a run's last steps; 0 if it never occurred."""
    return fmean([step[name] for step in run.steps[-count:] if name in step] or [0.0])


def main() -> None:
    """Run what is missing, then write the page."""
    parser = ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path(".swarm-arms"))
    parser.add_argument("--arms", nargs="+", choices=NAMES, default=NAMES)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    runs = {
        (arm, seed): kept(given.results, arm, seed, given.steps) for seed in range(given.seeds) for arm in given.arms
    }
    page({arm: [runs[arm, seed] for seed in range(given.seeds)] for arm in given.arms})


def page(runs: Mapping[str, Sequence[Run]]) -> None:
    """Write the page of ``runs``, by arm."""
    steps, seeds = len(next(iter(runs.values()))[0].steps), len(next(iter(runs.values())))
    figure = new_figure()
    figure.set_size_inches(11, 7)
    axes = figure.subplots(2, 2).flat
    panels = (("reward", "mean reward in training"), ("wide outcome", "wide tasks: item F1"),
              ("deep outcome", "deep tasks: accuracy"), ("deep spawns", "deep tasks: sub-tasks assigned"))  # fmt: skip
    for axis, (name, title) in zip(axes, panels, strict=True):
        for arm, colour in zip(runs, COLOURS, strict=False):
            curve = [fmean(run.steps[step].get(name, 0.0) for run in runs[arm]) for step in range(steps)]
            smooth = [fmean(curve[max(0, step - 4) : step + 1]) for step in range(steps)]
            axis.plot(smooth, color=colour, label=arm)
        axis.set(title=title, xlabel="step", ylim=(0, None))
    figure.axes[0].legend(fontsize=8)

    def cell(arm: str, name: str, digits: int = 2) -> str:
        values = [run.after.get(name, 0.0) for run in runs[arm]]
        spread = f" ({min(values):.{digits}f}–{max(values):.{digits}f})" if seeds > 1 else ""
        return f"{fmean(values):.{digits}f}{spread}"

    def rewards(arm: str) -> str:
        return f"{fmean(last(run, 'reward') for run in runs[arm]):.2f}"

    before = next(iter(runs.values()))[0].before
    outcomes = table(
        ["held out, after training", "wide: item F1", "deep: accuracy", "training reward at the end", "λ1 at the end"],
        [
            ["base model", f"{before['wide outcome']:.2f}", f"{before['deep outcome']:.2f}", "", ""],
            *(
                [arm, cell(arm, "wide outcome"), cell(arm, "deep outcome"), rewards(arm),
                 f"{runs[arm][0].steps[-1]['λ1']:g}"]
                for arm in runs
            ),
        ],
    )  # fmt: skip
    effort = table(
        ["", "sub-tasks wide", "deep", "finished wide", "critical steps wide", "total steps wide",
         "critical steps deep", "tokens wide", "deep", "steps to item F1 0.8", "seconds"],
        [
            [arm, *(cell(arm, name, 1) for name in ("wide spawns", "deep spawns")), cell(arm, "wide finished"),
             *(cell(arm, name, 1) for name in ("wide critical", "wide total", "deep critical", "wide tokens",
                                               "deep tokens")), *_until(runs[arm], 0.8)]
            for arm in runs
        ],
    )  # fmt: skip
    shown = sorted({*range(0, steps, max(1, steps // 5)), steps - 1})
    weights = table(
        ["λ1, λ2 by step", *map(str, shown)],
        [
            [arm, *(f"{runs[arm][0].steps[step]['λ1']:.2f}, {runs[arm][0].steps[step]['λ2']:.2f}" for step in shown)]
            for arm in runs
        ],
    )
    write(
        "swarm_arms",
        "Shaping for sub-agents: four arms and Toggle",
        [
            f"The orchestrator of `agents/swarm`, learnt from its base model in the simulator (`tests/simulator`) with "
            f"the trainer's own learner: {steps} steps of {GROUPS} tasks × 8 attempts in {SUBSTEPS} sub-steps, loss "
            f"`kimi`, scripted sub-agents that complete 90 % of answerable sub-tasks, seeds 0–{seeds - 1}: mean "
            "(least–largest). "
            "Held-out tasks are sampled at temperature 1; the training reward is that of the last 10 steps.",
            outcomes,
            effort,
            weights,
        ],
        figure,
    )


def _until(runs: Sequence[Run], wanted: float) -> list[str]:
    """Steps and wall-clock seconds until the mean item F1 of five steps reaches ``wanted``, of the runs that do."""
    found = []
    for run in runs:
        for step in range(4, len(run.steps)):
            if fmean(each.get("wide outcome", 0.0) for each in run.steps[step - 4 : step + 1]) >= wanted:
                found.append((step + 1, sum(run.seconds[: step + 1])))
                break
    if not found:
        return ["never", "never"]
    note = "" if len(found) == len(runs) else f" ({len(found)} of {len(runs)} runs)"
    return [f"{fmean(steps for steps, _ in found):.0f}{note}", f"{fmean(seconds for _, seconds in found):.0f}"]


if __name__ == "__main__":
    main()
