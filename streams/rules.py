"""Settings of the stream processors: rewards, policies and limits. The same live, in ``drive`` and in a replay."""

from dataclasses import dataclass, field

from headrace.streams.assembly.fold_limits import FoldLimits
from headrace.streams.grouping.group_policy import DEFAULT_POLICIES, GroupPolicies
from headrace.streams.grouping.groups import GroupLimits
from headrace.streams.rewards.registry import Rewards
from headrace.streams.scoring.feedback_join import JoinLimits
from headrace.streams.scoring.score import REWARDS_OF_AGENTS
from headrace.streams.watch.settings import WatchSettings


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of all processors."""

    rewards: Rewards = REWARDS_OF_AGENTS
    """Reward spec of each agent."""
    fold: FoldLimits = field(default_factory=FoldLimits)
    """Limits of the assembler."""
    groups: GroupLimits = field(default_factory=GroupLimits)
    """Limits of grouping."""
    policies: GroupPolicies = DEFAULT_POLICIES
    """How rewards are grouped."""
    join: JoinLimits = field(default_factory=JoinLimits)
    """Limits of the feedback join."""
    watch: WatchSettings = field(default_factory=WatchSettings)
    """Settings of the monitors."""
