"""The coder learns in the simulator, with and without summaries: what each earns on held-out tasks, by their size.

python -m tests.experiments.coder --seed 0 --json FILE                       with summaries
python -m tests.experiments.coder --seed 0 --json FILE --no-summaries        the same budget without
python -m tests.experiments.coder --seed 0 --json FILE --control             shuffled advantages
python -m tests.experiments.coder --seed 0 --json FILE --reward coder@2      another reward: see REWARDS
python -m tests.experiments.coder --markdown FILE … [--picture PNG]          tables of such files, and their picture
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import Qwen3ForCausalLM

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.harness import Limits
from headrace.agents.coder.warm_runner import WarmRunner
from headrace.schemas.records.trajectory import ToolUse
from headrace.streams.rewards.coder import CODER, CODER_SHORT, LENGTH_WEIGHT, LENGTHS, coder
from tests.experiments.page import COLOURS, new_figure, table
from tests.simulator.coder import CoderEpisode, TestCache, held_out_episodes, sampling_settings, training_episodes
from tests.simulator.learn import Evaluation, LearnSettings, Step, learn, trainer_settings
from tests.simulator.sampling import Attempt, play

REWARDS = {
    "coder@1": CODER,
    "coder@2": CODER_SHORT,
    "coder@2, thinking tenfold": coder(
        name="coder-thinking",
        version=1,
        length_weight=LENGTH_WEIGHT,
        lengths=replace(LENGTHS, thinking_tokens=10 * LENGTHS.thinking_tokens),
    ),
    "outcome": coder(name="coder-outcome", version=1, todo_weight=0.0, tool_error_weight=0.0),
    "outcome, to-dos": coder(name="coder-todos", version=1, tool_error_weight=0.0),
    "outcome, tool errors": coder(name="coder-errors", version=1, todo_weight=0.0),
}
"""What attempts are rewarded with: the shipped rewards, the second with dearer thinking, and the outcome with one
penalty or none."""
BASE = Path(__file__).parents[2] / "agents" / "coder" / "base"
SIZES = (1, 2, 3, 4, 6, 8)
SHOWN = (
    ("looked up", "looked_up", ".2f"),
    ("tested", "tested", ".2f"),
    ("tokens", "sampled_tokens", ".0f"),
    ("turns", "turns", ".1f"),
    ("failed calls", "failed_calls", ".2f"),
    ("open to-dos", "open_todos", ".2f"),
    ("summaries", "summaries", ".1f"),
)
"""Columns of the first table, sampled: heading, value, format."""
STEPS, GROUPS = 40, 8
TASKS_A_SEED = 100_000


def values(attempts: Sequence[Attempt[CoderEpisode]]) -> dict[str, float]:
    """Returns the means over ``attempts``: reward, verdict, and how they worked."""
    episodes = [attempt.episode for attempt in attempts]
    uses = [[use for turn in episode.turns for use in turn.tools] for episode in episodes]
    ends = [episode.done for episode in episodes]
    return {
        "reward": fmean(episode.reward() for episode in episodes),
        "outcome": fmean(end.outcome if end else 0.0 for end in ends),
        "solved": fmean(end is not None and end.outcome == 1.0 for end in ends),
        "submitted": fmean(end is not None and end.answer is not None for end in ends),
        "turns": fmean(len(episode.turns) for episode in episodes),
        "sampled_tokens": fmean(sum(turn.sampled_tokens for turn in episode.turns) for episode in episodes),
        "thinking_tokens": fmean(sum(use.thinking_tokens or 0 for use in each) for each in uses),
        "summaries": fmean(episode.harness.summaries for episode in episodes),
        "summary_tokens": fmean(
            sum(turn.sampled_tokens for turn in episode.turns if turn.summarized) for episode in episodes
        ),
        "looked_up": fmean(any(map(_looks_up, each)) for each in uses),
        "tested": fmean(any(use.tool == words.RUN_TESTS for use in each) for each in uses),
        "failed_calls": fmean(sum(use.error_class is not None for use in each) for each in uses),
        "open_todos": fmean(episode.score().components["unfinished_todos"].value for episode in episodes),
        "exits": fmean(any("exit" in use.arguments.get("body", "") for use in each) for each in uses),
        "edited_tests": fmean(
            any(use.tool == words.EDIT and use.arguments.get("path") == words.TESTS_FILE for use in each)
            for each in uses
        ),
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains and evaluates one arm; returns its curve and its values by size, which ``--json`` writes."""
    torch.set_num_threads(arguments.threads)
    model = Qwen3ForCausalLM.from_pretrained(arguments.base, dtype=torch.float32)
    limits = Limits(summaries=0) if arguments.no_summaries else Limits()
    spec = REWARDS[arguments.reward]
    settings = LearnSettings(
        sampling_settings(limits),
        trainer=trainer_settings(
            steps=arguments.steps,
            groups_per_step=arguments.groups,
            substeps=arguments.substeps,
            seed=arguments.seed,
            learning_rate=arguments.learning_rate,
            constant_length=48,
            shuffle_advantages=arguments.control,
        ),
        maximum=1.0,
        first_task=arguments.seed * TASKS_A_SEED,
        held_out_tasks=arguments.held_out,
    )
    steps: list[dict[str, Any]] = []
    held_out: list[dict[str, Any]] = []

    def report(event: Step | Evaluation) -> None:
        if isinstance(event, Step):
            steps.append({"step": event.version, **event.values, "groups": event.groups, "seconds": event.seconds})
            print(f"step {event.version}: {_short(event.values)}", flush=True)
        else:
            held_out.append({"version": event.version, "greedy": event.greedy, "sampled": event.sampled})
            print(f"held out at {event.version}: greedy {_short(event.greedy)}; sampled {_short(event.sampled)}")

    by_size: dict[str, Any] = {}
    with WarmRunner() as runner:
        cache = TestCache(runner)
        training = training_episodes(cache, spec=spec, limits=limits)
        learn(model, training, settings, held_out_episodes(cache, spec=spec, limits=limits), values, report)
        if arguments.save:
            model.save_pretrained(arguments.save)
        for size in SIZES if arguments.by_size else ():
            episode = held_out_episodes(cache, size=size, spec=spec, limits=limits)
            asked = [episode(number, arguments.steps) for number in range(arguments.by_size)]
            by_size[str(size)] = found = values(play(model, asked, settings.sampling, seed=arguments.seed))
            print(f"{size} functions: sampled {_short(found)}", flush=True)
        runs = {"runs": cache.runs, "known": cache.hits}
    arm = "control" if arguments.control else "without summaries" if arguments.no_summaries else "with summaries"
    if arguments.reward != "coder@1":
        arm += f", {arguments.reward}"
    return {"arm": arm, "seed": arguments.seed, "steps": steps, "held_out": held_out, "by_size": by_size, "tests": runs}


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """Returns two tables of ``results``: before and after, and after by size."""
    learnt = table(
        ("arm, seed", "greedy", "sampled", "solved", *(head for head, _, _ in SHOWN)),
        (
            (
                f"{result['arm']}, {result['seed']}",
                *(
                    f"{before[mode][name]:.2f} → {after[mode][name]:.2f}"
                    for mode, name in (("greedy", "outcome"), ("sampled", "outcome"), ("sampled", "solved"))
                ),
                *(f"{before['sampled'][name]:{form}} → {after['sampled'][name]:{form}}" for _, name, form in SHOWN),
            )
            for result in results
            for before, after in [(result["held_out"][0], result["held_out"][-1])]
        ),
    )
    sizes = table(
        ("outcome, sampled (summaries an attempt)", *map(str, SIZES)),
        (
            (
                f"{arm}, {len(found)} seed{'s' * (len(found) > 1)}",
                *(
                    f"{_mean(found, size, 'outcome'):.2f} ({_mean(found, size, 'summaries'):.1f})"
                    for size in map(str, SIZES)
                ),
            )
            for arm, found in _by_arm(results).items()
        ),
    )
    return f"{learnt}\n\n{sizes}\n"


def picture(results: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the outcome of training samples by step, and of held-out tasks by size, mean of each arm's seeds."""
    figure = new_figure()
    curve, sizes = figure.subplots(1, 2)
    for (arm, found), colour in zip(_by_arm(results, by_size=False).items(), COLOURS, strict=False):
        steps = list(zip(*(result["steps"] for result in found), strict=True))
        means = [fmean(each["outcome"] for each in step) for step in steps]
        for result in found:
            curve.plot([each["outcome"] for each in result["steps"]], color=colour, alpha=0.25, linewidth=0.8)
        curve.plot(means, color=colour, label=f"{arm}, {len(found)} seed{'s' * (len(found) > 1)}")
    for (arm, found), colour in zip(_by_arm(results).items(), COLOURS, strict=False):
        sizes.plot(SIZES, [_mean(found, str(size), "outcome") for size in SIZES], "o-", color=colour, label=arm)
    curve.set(title="training samples", xlabel="step", ylabel="outcome", ylim=(0, 1.02))
    sizes.set(title="held-out tasks, after training", xlabel="functions to repair", ylabel="outcome", ylim=(0, 1.02))
    for axes in (curve, sizes):
        axes.legend(fontsize=8)
    figure.savefig(file)


def _by_arm(results: Sequence[dict[str, Any]], *, by_size: bool = True) -> dict[str, list[dict[str, Any]]]:
    """Returns the results of each arm; with ``by_size``, of those that were evaluated by size."""
    arms: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        if result["by_size"] or not by_size:
            arms[result["arm"]].append(result)
    return arms


def _mean(results: Sequence[dict[str, Any]], size: str, name: str) -> float:
    return fmean(result["by_size"][size][name] for result in results)


def _looks_up(use: ToolUse) -> bool:
    """Returns whether a call shows the number of a constant."""
    arguments = use.arguments
    return arguments.get("path") == words.CONSTANTS_FILE or arguments.get("pattern") in words.CONSTANTS


def _short(found: Any) -> str:
    names = ("reward", "outcome", "turns", "summaries", "looked_up", "tested")
    return ", ".join(f"{name} {found[name]:.2f}" for name in names)


def parser() -> argparse.ArgumentParser:
    """Returns the command's options."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--base", type=Path, default=BASE)
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--steps", type=int, default=STEPS)
    found.add_argument("--groups", type=int, default=GROUPS, help="groups of a step")
    found.add_argument("--substeps", type=int, default=1)
    found.add_argument("--threads", type=int, default=1)
    found.add_argument("--held-out", type=int, default=128, help="held-out tasks of an evaluation")
    found.add_argument("--by-size", type=int, default=48, help="held-out tasks of each size, sampled; 0: none")
    found.add_argument("--learning-rate", type=float, default=8e-4)
    found.add_argument("--no-summaries", action="store_true")
    found.add_argument("--reward", choices=REWARDS, default="coder@1")
    found.add_argument("--control", action="store_true")
    found.add_argument("--json", type=Path, help="file for the result")
    found.add_argument("--save", type=Path, help="folder for the model")
    found.add_argument("--markdown", type=Path, nargs="+", metavar="FILE", help="print tables of results")
    found.add_argument("--picture", type=Path, metavar="PNG", help="with --markdown: draw them")
    return found


def main() -> None:
    """Runs an arm, or prints tables."""
    arguments = parser().parse_args()
    if arguments.markdown:
        results = [json.loads(file.read_text()) for file in arguments.markdown]
        print(markdown(results))
        if arguments.picture:
            picture(results, arguments.picture)
        return
    result = run(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
