"""A taskset of verifiers with a tool, weighted rewards, and rollouts that fail in several ways. Only the Python of the
environment imports it."""

import asyncio
from collections.abc import Iterator

import verifiers.v1 as vf

KINDS = ("right", "scoring_raises", "too_slow", "not_finite")


class WeatherToolset(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    @vf.tool
    async def get_weather(self, city: str) -> str:
        """The weather of a city."""
        return f"{city}: cold"


class WeatherData(vf.TaskData):
    kind: str


class WeatherTask(vf.Task[WeatherData]):
    async def setup(self) -> None:
        print("this is printed by the environment")
        if self.data.kind == "too_slow":
            await asyncio.sleep(3600)

    @vf.reward(weight=1.0)
    async def correct(self, trace: vf.Trace) -> float:
        if self.data.kind == "scoring_raises":
            raise ValueError("cannot be scored")
        return float("nan") if self.data.kind == "not_finite" else float("cold" in trace.last_reply)

    @vf.reward(weight=0.5)
    async def asked(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))

    @vf.metric
    async def letters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class WeatherTaskset(vf.Taskset[WeatherTask, vf.TasksetConfig]):
    @classmethod
    def toolsets(cls, config: vf.TasksetConfig) -> list[vf.Toolset]:
        return [WeatherToolset(vf.SharedToolsetConfig())]

    def load(self) -> Iterator[WeatherTask]:
        for kind in KINDS:
            yield WeatherTask(WeatherData(name=kind, prompt="Is it cold in Oslo?", kind=kind), self.config.task)


__all__ = ["WeatherTaskset"]

if __name__ == "__main__":
    WeatherToolset.run()
