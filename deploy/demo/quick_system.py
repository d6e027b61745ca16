"""The search agent in its quick form, the default system of ``headrace demo``: under a budget that most questions meet
without a prune, so that it learns within minutes. ``search_system.py`` is the form in which pruning is learnt."""

from headrace.agents.open_groups import ZeroVariance
from headrace.agents.rollouts.attempts import PolicyAttempts
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.rollouts.curriculum import CurriculumSettings
from headrace.agents.search import vocabulary as words
from headrace.agents.search.demonstrations import HELD_OUT_FIRST, demonstrations
from headrace.agents.search.program_attempts import AGENT as PROGRAM_AGENT
from headrace.agents.search.program_attempts import program_attempts
from headrace.agents.search.rollouts import AGENT, SEARCH_TASKS, search_agent
from headrace.agents.search.tasks import Task
from headrace.deploy.configuration.settings import base_model_dir
from headrace.deploy.demo.system import Arm, BaseModel, Program, System


def _attempts(config: RolloutConfig) -> PolicyAttempts[Task]:
    return PolicyAttempts(
        search_agent(), config.bootstrap, config.vllm_url, run=config.run, concurrency=config.concurrency
    )


QUICK = System(
    name="quick",
    about="a search agent under a budget that most questions meet",
    tasks=SEARCH_TASKS,
    attempts=_attempts,
    agents=(AGENT, PROGRAM_AGENT),
    base=base_model_dir(),
    base_model=BaseModel(
        vocabulary_size=len(words.VOCABULARY),
        end_id=words.END_ID,
        pad_id=words.PAD_ID,
        tokenizer=words.tokenizer_json,
        tokenizer_config=words.tokenizer_config,
        demonstrations=demonstrations,
        held_out_first=HELD_OUT_FIRST,
    ),
    arms={
        "curriculum": Arm(
            "questions of one hop first, of more hops as the pass rate rises", plan={"curriculum": CurriculumSettings()}
        ),
        "drop": Arm(
            "groups without a gradient are replaced with the next version, not at once",
            plan={"zero_variance": ZeroVariance.DROP},
        ),
    },
    program=Program(program_attempts, words.encode, words.END_ID, requires="openai"),
)
