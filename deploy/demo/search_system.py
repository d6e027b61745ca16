"""The search agent, modelled on Chroma's Context-1, under a budget that several hops cannot meet unless it prunes.

Reward by hops, prune accuracy, the longest streak of prunes, and what was seen against what was answered.
"""

from collections.abc import Collection
from pathlib import Path
from statistics import fmean

from headrace.agents.rollouts.attempts import PolicyAttempts
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.search import vocabulary as words
from headrace.agents.search.demonstrations import HELD_OUT_FIRST
from headrace.agents.search.pruning import (
    CURRICULUM,
    PRUNING_TASKS,
    BudgetedTask,
    hops_in,
    pruning_agent,
    warm_up_demonstrations,
)
from headrace.agents.search.rollouts import AGENT
from headrace.agents.search.tasks import HOP_WEIGHTS
from headrace.deploy.configuration.settings import base_model_dir
from headrace.deploy.demo.summary import normalised
from headrace.deploy.demo.system import Arm, BaseModel, System, component_means
from headrace.schemas.records.reward import Reward
from headrace.streams.rewards.context1 import SEARCH_PRUNING


def _attempts(config: RolloutConfig) -> PolicyAttempts[BudgetedTask]:
    return PolicyAttempts(
        pruning_agent(), config.bootstrap, config.vllm_url, run=config.run, concurrency=config.concurrency
    )


def pruning_figures(rewards: Collection[Reward]) -> dict[str, float]:
    """Return the mean reward by hops, as a share of the maximum, and how attempts pruned.

    Prune accuracy is the share of removed chunks that are no evidence; absent if nothing was removed. The trajectory's
    recall counts what was ever shown, the output's what is in the answer.
    """
    found: dict[str, float] = {}
    for hops in HOP_WEIGHTS:
        of_hops = [normalised(each) for each in rewards if each.task_id and hops_in(each.task_id) == hops]
        if of_hops:
            found[f"reward, {hops} hop{'s' * (hops > 1)}"] = fmean(of_hops)
    means = component_means(rewards)
    scored = [each.components for each in rewards if "chunks_pruned" in each.components]
    if scored:
        removed = sum(each["chunks_pruned"].value for each in scored)
        found["attempts that prune"] = fmean(each["chunks_pruned"].value > 0 for each in scored)
        if removed:
            found["prune accuracy"] = 1 - sum(each["evidence_pruned"].value for each in scored) / removed
        found["longest prune streak"] = max(each["longest_streak"].value for each in scored)
    for name in ("trajectory_recall", "output_recall"):
        if name in means:
            found[name.replace("_", " ")] = means[name]
    return found


SEARCH = System(
    name="search",
    about="a search agent that learns to prune its context",
    tasks=PRUNING_TASKS,
    attempts=_attempts,
    agents=(AGENT,),
    base=Path(words.__file__).with_name("pruning_base"),
    base_model=BaseModel(
        vocabulary_size=len(words.VOCABULARY),
        end_id=words.END_ID,
        pad_id=words.PAD_ID,
        tokenizer=words.tokenizer_json,
        tokenizer_config=words.tokenizer_config,
        demonstrations=warm_up_demonstrations,
        held_out_first=HELD_OUT_FIRST,
        episodes=12_000,
        steps=390,
        learning_rate=2e-3,
        warmup_steps=20,
        begins_with=base_model_dir(),
    ),
    # On its way the policy goes through attempts that search on and never answer, which earn up to 0.65 of the maximum.
    # On samples of one or two versions before, that takes more steps than the 80 of the simulator.
    plan={
        "steps": 120,
        "max_steps_ahead": 1,
        "heldout_tasks": 120,
        "learning_rate": 4e-4,
        "curriculum": CURRICULUM,
    },
    options={"workers": {"rewards": {AGENT: SEARCH_PRUNING.label}}, "trainer": {"loss": "cispo", "substeps": 4}},
    arms={"no-curriculum": Arm("tasks of the last level from the start", plan={"curriculum": None})},
    figures=pruning_figures,
)
