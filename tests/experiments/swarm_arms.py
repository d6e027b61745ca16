"""Shaping for sub-agents: none, annealed, never annealed, r_parallel only; and Toggle. Learnt from the base model.

python -m tests.experiments.swarm_arms                  # what the rewards pay for, by players without mistakes
python -m tests.experiments.swarm_arms --results DIR [--seeds 3] [--steps 60] [--arms NAME …]      # what is learnt
python -m tests.experiments.swarm_arms --budgets        # Toggle's budgets by task source, for the live arm

Each finished run is kept as a JSON file in DIR, so that an interrupted experiment resumes with the next run.
``swarm_arms_page.py`` makes the tables and the picture.
"""

import json
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean

import torch

from headrace.agents.swarm import vocabulary as words
from headrace.agents.swarm.tasks import Source, Split, Task, make_task, task_id
from headrace.streams.grouping.group_policy import GroupPolicy
from headrace.streams.rewards.swarm import ARMS
from headrace.streams.rewards.toggle import Toggle, length_budgets
from headrace.trainer.model.load import load_model
from tests.experiments.page import show, write
from tests.experiments.swarm_arms_page import HELD_OUT_TASKS, Run, page, what_pays
from tests.simulator.learn import Curve, Evaluation, LearnSettings, Step, learn, trainer_settings
from tests.simulator.sampling import Attempt, SamplingSettings, play
from tests.simulator.swarm import (
    FIRST_TRAINING_TASK,
    SwarmEpisode,
    held_out_episodes,
    sampling_settings,
    training_episodes,
)

BASE = Path(words.__file__).with_name("base")
STEPS, GROUPS, SUBSTEPS, LEARNING_RATE = 60, 8, 4, 4e-4
TASKS_PER_SEED = 1_000_000
TOGGLE = "annealed, Toggle"
NAMES = (*ARMS, TOGGLE)
TOGGLE_PERIOD, TOGGLE_PERCENTILE, TOGGLE_ACCURACY = 5, 50.0, 0.5
GOOD_OUTCOME = 0.5
"""Outcome from which an attempt's length counts for a budget: the base model solves few tasks whole."""


def measured(attempts: Sequence[Attempt[SwarmEpisode]]) -> dict[str, float]:
    """Returns the means that the page shows, of all attempts and by kind of task.

    ``delegates`` is the share of attempts with a sub-task, ``finished`` that of sub-tasks whose sub-agent completed.
    ``longest critical`` is how long all attempts take side by side, in model calls, ``longest total`` the same if the
    sub-agents of a turn ran one after another.
    """
    episodes = [attempt.episode for attempt in attempts]
    found: dict[str, float] = {
        "reward": fmean(each.reward() for each in episodes),
        "longest critical": max(each.harness.critical_steps + 1 for each in episodes),
        "longest total": max(each.harness.turns + each.subagent_steps for each in episodes),
    }
    for source in Source:
        some = [each for each in episodes if each.task.source is source]
        if not some:
            continue
        assigned = sum(each.harness.assigned for each in some)
        scores = [each.score().components for each in some]
        found |= {
            f"{source} outcome": fmean(each.outcome for each in some),
            f"{source} reward": fmean(each.reward() for each in some),
            f"{source} parallel": fmean(each["parallel"].value for each in scores),
            f"{source} finish": fmean(each["finish"].value for each in scores),
            f"{source} spawns": assigned / len(some),
            f"{source} delegates": fmean(each.harness.assigned > 0 for each in some),
            f"{source} critical": fmean(each.harness.critical_steps + 1 for each in some),
            f"{source} total": fmean(each.harness.turns + each.subagent_steps for each in some),
            f"{source} tokens": fmean(each.sampled for each in some),
        }
        if assigned:
            found[f"{source} finished"] = sum(each.finished for each in some) / assigned
    weights = episodes[0].score().components
    return found | {"λ1": weights["parallel"].weight, "λ2": weights["finish"].weight}


def run(arm: str, seed: int, steps: int = STEPS, *, held_out_tasks: int = HELD_OUT_TASKS, groups: int = GROUPS) -> Run:
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

    def key(task: Task) -> str:
        return f"{task.source} {len(task.evidence)}"

    by_class = base_budgets(model, settings.sampling, settings.trainer.seed, key)
    trained = (make_task(task_id(Split.TRAIN, first + number)) for number in range(tasks))
    classes = {f"g-{number}": by_class.get(key(task)) for number, task in enumerate(trained)}
    budgets = {name: budget for name, budget in classes.items() if budget is not None}
    return Toggle(period=TOGGLE_PERIOD, accuracy=TOGGLE_ACCURACY, budgets=budgets)


def base_budgets(
    model: torch.nn.Module, sampling: SamplingSettings, seed: int, key: Callable[[Task], str]
) -> dict[str, int]:
    """Returns class of tasks → its length budget in sampled tokens: the median of the base model's good attempts at
    tasks of the demonstrations, which are never trained on. ``key`` is the class of a task."""
    tasks = [make_task(task_id(Split.TRAIN, number)) for number in range(512) for _ in range(2)]
    episodes = [SwarmEpisode(task, spec=ARMS["none"], member=f"budget/{place}") for place, task in enumerate(tasks)]
    played = play(model, episodes, sampling, seed=seed)  # type: ignore[arg-type]
    lengths = [(key(each.episode.task), each.episode.outcome, each.episode.sampled) for each in played]
    return length_budgets(lengths, percentile=TOGGLE_PERCENTILE, solved=GOOD_OUTCOME)


def _plain(arm: str, seed: int, curve: Curve) -> Run:
    before, after = curve.held_out[0], curve.held_out[-1]
    steps = [dict(step.values) for step in curve.steps]
    return Run(arm, seed, steps, *(dict(each) for each in (before.sampled, after.sampled, before.greedy, after.greedy)))


def kept(results: Path, arm: str, seed: int, steps: int) -> Run:
    """Returns the run, from its file if it has ended before."""
    path = results / f"{arm.replace(' ', '-').replace(',', '')}-{seed}-{steps}.json"
    if path.is_file():
        return Run(**json.loads(path.read_text()))
    began = time.monotonic()
    done = run(arm, seed, steps)
    results.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({each.name: getattr(done, each.name) for each in fields(done)}))
    shown = ", ".join(f"{name} {done.after.get(name, 0):.2f}" for name in ("reward", "wide outcome", "deep outcome"))
    print(f"{arm}, seed {seed}: {shown} after {time.monotonic() - began:.0f} s", flush=True)
    return done


def main() -> None:
    """Run what is missing, then write the page; without results, print what the rewards pay for."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="folder of finished runs; unset: nothing is learnt, nor written")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--arms", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--budgets", action="store_true", help="print Toggle's budgets by task source, learn nothing")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.budgets:
        for seed in range(given.seeds):
            found = base_budgets(load_model(BASE), sampling_settings(), seed, lambda task: task.source.value)
            print(f"seed {seed}: {found}")
        return
    if given.results is None:
        show(what_pays(), "with --results DIR also what is learnt")
        return
    seeds = range(given.seeds)
    runs = {(arm, seed): kept(given.results, arm, seed, given.steps) for seed in seeds for arm in given.arms}
    learnt, figure = page({arm: [runs[arm, seed] for seed in seeds] for arm in given.arms})
    write("swarm_arms", "Shaping for sub-agents, by arm", [*what_pays(), *learnt], figure, options="--results DIR")


if __name__ == "__main__":
    main()
