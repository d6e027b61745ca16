"""Environments through a whole gateway: an engine that plays rollouts by a script, and what must hold of the log."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.schemas.events import EndStatus, ModelCalled, TrajectoryEnded, TrajectoryStarted
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.wire import decode
from headrace.streams.drive import drive
from headrace.streams.rewards.registry import DEFAULTS, parse_rewards
from headrace.streams.topology import TOPOLOGY
from tests.agents.gateway.running import RunningGateway, exact_calls, recorded, running_gateway, spooled_in
from tests.agents.gateway.scripted_engine import FileCodec, Reply, ScriptedEngine
from tests.conftest import Engine

TURN = "<|im_start|>assistant\n"
END = "<|im_end|>"


class Playing(ScriptedEngine):
    """A policy that plays several plans: each new conversation takes the next one, and shows it by its first answer."""

    def __init__(self, plans: Sequence[Sequence[str]], render: Engine) -> None:
        """``plans``: answers turn by turn; all first answers differ."""
        super().__init__(codec=FileCodec(render.model_dir), upstream=render.url)
        self._plans = plans
        self._begun = 0
        self._end = tuple(self.codec.encode(END))
        self.played: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """Prompt and sampled tokens of each call, by its id."""

    def reply_to(self, body: dict[str, Any]) -> Reply:
        answers = [each.partition(END)[0] for each in self.codec.decode(body["token_ids"]).split(TURN)[1:]]
        if len(answers) == 1:  # the one that is due
            plan = self._plans[self._begun % len(self._plans)]
            self._begun += 1
        else:
            plan = next(each for each in self._plans if answers[0].strip() == each[0].strip())
        text = plan[min(len(answers), len(plan)) - 1]
        self.played[body["request_id"]] = (tuple(body["token_ids"]), (*self.codec.encode(text), *self._end))
        return Reply(text, ends_with=self._end, chunk_tokens=8)


@asynccontextmanager
async def playing(
    folder: Path, render: Engine, plans: Sequence[Sequence[str]], **settings: Any
) -> AsyncIterator[tuple[Playing, RunningGateway]]:
    """The engine, and a gateway in front of it."""
    parsers = {"tool_parser": "hermes", "model_path": str(render.model_dir)}
    async with (
        Playing(plans, render) as engine,
        running_gateway(
            folder, [engine.url], run="run", model_aliases={"*": "policy"}, **parsers, **settings
        ) as gateway,
    ):
        yield engine, gateway


class Logged:
    """What the log has of the rollouts, and what the processors make of it."""

    def __init__(self, folder: Path) -> None:
        """``folder``: of a gateway that has stopped."""
        spooled = spooled_in(folder)
        self.events = [recorded(each) for each in spooled]
        self.calls = exact_calls(self.events)
        self.started = self._by_trajectory(TrajectoryStarted)
        self.ended = self._by_trajectory(TrajectoryEnded)
        by_time = [decode(each.headers, each.value) for each in spooled]
        last_ms = max(envelope.time_ms for envelope, _ in by_time)
        self.written = drive(TOPOLOGY, by_time, rewards=parse_rewards(DEFAULTS), until_ms=last_ms + 3_600_000)

    def _by_trajectory(self, kind: type[Any]) -> dict[str, Any]:
        return {each.trajectory_id: each.fact for each in self.events if isinstance(each.fact, kind)}

    @property
    def groups(self) -> list[TrainingGroup]:
        return [each for each in self.written["training"] if isinstance(each, TrainingGroup)]

    @property
    def rejections(self) -> list[Rejection]:
        return [each for each in self.written["rejected"] if isinstance(each, Rejection)]

    def assert_exact(self, engine: Playing) -> None:
        """Every call of the engine is recorded once with its tokens, and each trajectory is one segment."""
        found = {
            str(call.fact.call_id): (tuple(call.prompt_ids), tuple(call.fact.sampled_ids or ())) for call in self.calls
        }
        assert len(found) == len(self.calls)
        assert found == engine.played
        assert sum(call.starts_segment for call in self.calls) == len(self.started)

    def assert_groups(
        self,
        sizes: Sequence[int],
        rewards: Callable[[TrajectoryEnded], float],
        status: EndStatus = EndStatus.COMPLETED,
    ) -> None:
        """The trajectories are groups of these sizes; each ended so, its outcome what the environment gave, and it is
        trained with it."""
        by_group: dict[str, set[str]] = {}
        for name, started in self.started.items():
            by_group.setdefault(started.group_id, set()).add(name)
        assert sorted(map(len, by_group.values())) == sorted(sizes)
        for members in by_group.values():
            assert len({self.started[each].task_id for each in members}) == 1
            assert {self.started[each].group_size for each in members} == {len(members)}
        for ended in self.ended.values():
            assert ended.status is status
            assert ended.outcome == rewards(ended)
        assert not self.rejections, [(each.reason, each.reward) for each in self.rejections]
        assert {group.group_id: {each.trajectory_id for each in group.members} for group in self.groups} == by_group
        for group in self.groups:
            assert {each.trajectory_id: each.reward for each in group.members} == {
                name: self.ended[name].outcome for name in by_group[group.group_id]
            }
        assert all(isinstance(call.fact, ModelCalled) for call in self.calls)
