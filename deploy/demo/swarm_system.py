"""The orchestrator of sub-agents, modelled on Kimi K2.5's Agent Swarm, as a system of ``headrace demo``.

Its arms differ in the reward: what shaping pays for sub-agents, whether it is annealed, and whether Toggle limits the
length of attempts.
"""

from collections.abc import Collection
from pathlib import Path
from statistics import fmean

from headrace.agents.rollouts.attempts import PolicyAttempts
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.swarm import vocabulary as words
from headrace.agents.swarm.demonstrations import HELD_OUT_FIRST, demonstrations
from headrace.agents.swarm.rollouts import AGENT, SWARM_TASKS, swarm_agent
from headrace.agents.swarm.tasks import Source, Task, make_task
from headrace.deploy.configuration.settings import base_model_dir
from headrace.deploy.demo.system import Arm, BaseModel, Measure, Options, System, component_means, merged
from headrace.schemas.records.reward import Reward
from headrace.streams.rewards.spec import RewardSpec
from headrace.streams.rewards.swarm import ARMS, SWARM_SHORT

_ABOUT = {
    "none": "no shaping: the outcome alone",
    "annealed": "shaping that is annealed to 0, which is the system itself",
    "never-annealed": "shaping that is never annealed: the published mistake",
    "parallel-only": "r_parallel alone, never annealed",
}


TOGGLE = {"period": 5, "accuracy": 0.5, "source_budgets": {"wide": 24, "deep": 31}}
"""Budgets in sampled tokens: medians of the base model's good attempts, over three seeds of sampling
(``python -m tests.experiments.swarm_arms --budgets``). No task is attempted twice, so they are by source."""


def _attempts(config: RolloutConfig) -> PolicyAttempts[Task]:
    return PolicyAttempts(
        swarm_agent(config.run), config.bootstrap, config.vllm_url, run=config.run, concurrency=config.concurrency
    )


def _rewarded_by(spec: RewardSpec) -> Options:
    return {"workers": {"rewards": {AGENT: spec.label}}}


def _outcome(reward: Reward) -> float:
    """Return item F1 or accuracy; 0 for an attempt that could not be scored."""
    found = reward.components.get("outcome")
    return 0.0 if found is None or reward.total is None else found.value


def _figures(rewards: Collection[Reward]) -> dict[str, float]:
    """Return the means of the reward, of each component and of the sampled tokens by the source of the task: ``wide
    outcome`` is item F1, ``deep outcome`` accuracy, ``deep parallel`` a tenth of the sub-tasks of a deep task."""
    found: dict[str, float] = {}
    for source in Source:
        of_source = [each for each in rewards if each.task_id and make_task(each.task_id).source is source]
        totals = [each.total for each in of_source if each.total is not None]
        found |= {f"{source} reward": fmean(totals)} if totals else {}
        found |= {f"{source} {name}": value for name, value in component_means(of_source).items()}
        found |= {f"{source} tokens": fmean(each.sampled_tokens for each in of_source)} if of_source else {}
    return found


SWARM = System(
    name="swarm",
    about="an orchestrator of sub-agents under a budget of critical steps",
    tasks=SWARM_TASKS,
    attempts=_attempts,
    agents=(AGENT,),
    base=Path(words.__file__).with_name("base"),
    base_model=BaseModel(
        vocabulary_size=len(words.VOCABULARY),
        end_id=words.END_ID,
        pad_id=words.PAD_ID,
        tokenizer=words.tokenizer_json,
        tokenizer_config=words.tokenizer_config,
        demonstrations=demonstrations,
        held_out_first=HELD_OUT_FIRST,
        episodes=40_000,
        steps=3_000,
        batch_size=32,
        begins_with=base_model_dir(),
    ),
    plan={"steps": 80, "groups_per_step": 8, "learning_rate": 4e-4, "heldout_tasks": 96},
    options=merged(_rewarded_by(SWARM_SHORT), {"trainer": {"loss": "kimi", "substeps": 4}}),
    arms={name: Arm(_ABOUT[name], _rewarded_by(spec)) for name, spec in ARMS.items()}
    | {
        "toggle": Arm(
            "shaping that is annealed to 0, and Toggle: lengths of solved tasks count in every other five versions",
            {"workers": {"group_policies": {SWARM_SHORT.name: {"toggle": TOGGLE}}}},
        )
    },
    # λ falls while the policy learns, so the same answers earn less reward after training than before.
    measure=Measure("item F1 of wide tasks and accuracy of deep ones", _outcome),
    figures=_figures,
)
