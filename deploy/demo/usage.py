"""Where processors and time went while a demo's agent learned.

    Usage(seconds=150.0, cores=2, processor_s={"vllm": 141.0, "trainer": 83.2, "this process": 30.1, …}, idle_s=12.0,
          sampled_tokens=812_000, prompt_tokens=5_100_000, trainer_wait_s=21.4, trainer_s=148.9)

Processor seconds are those of a part's process and of all that it started. What is neither a part's nor idle is time of
other programs on the machine, and of parts that were restarted meanwhile, up to their restart.
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil
from pydantic import BaseModel, ConfigDict

from headrace.deploy.stack.stack import Stack
from headrace.schemas.records.step import Step

THIS_PROCESS = "this process"
"""The demo itself: samplers, harness, environment and the supervision of the stack, with programs that it starts."""

_COUNTERS = {"vllm:generation_tokens": "sampled", "vllm:prompt_tokens": "prompt"}
_METRICS_S = 10.0


class Usage(BaseModel):
    """What was used between two readings."""

    model_config = ConfigDict(frozen=True)

    seconds: float
    """Time between them."""
    cores: int
    """Processors of the machine that this process may use."""
    processor_s: dict[str, float]
    """Processor seconds by part of the stack."""
    idle_s: float
    """Seconds in which those processors were idle."""
    sampled_tokens: int | None
    """Tokens that vLLM sampled; ``None`` if it does not tell."""
    prompt_tokens: int | None
    """Tokens of the prompts it was given, cached ones too."""
    trainer_wait_s: float
    """Time in which the trainer waited for groups, over its steps but the first."""
    trainer_s: float
    """Duration of its steps."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters at one moment."""

    at_s: float
    processor_s: Mapping[tuple[str, int], float]
    """By part and process id."""
    idle_s: float
    tokens: Mapping[str, int]
    """``sampled`` and ``prompt``; empty if vLLM does not tell."""


async def read_counters(stack: Stack) -> Reading:
    """Return the counters of all parts and of the engine now."""
    pids = {name: part.pid for name, part in stack.parts.items() if part.pid}
    own = {THIS_PROCESS: psutil.Process().pid}
    taken = {(name, pid): _processor_s(pid) for name, pid in pids.items()}
    # The stack's parts are descendants of this process, and so are programs of the agent, such as sandboxes.
    taken |= {(THIS_PROCESS, pid): max(0.0, _processor_s(pid) - sum(taken.values())) for pid in own.values()}
    tokens = await _tokens(stack.addresses["vllm"]) if "vllm" in stack.addresses else {}
    return Reading(time.monotonic(), taken, _idle_s(), tokens)


def used(before: Reading, after: Reading, steps: Iterable[Step]) -> Usage:
    """Return what was used from one reading to the other. ``steps``: those of the trainer in between; the first one's
    time began before, when the trainer started, and does not count."""
    spent = {
        name: round(after.processor_s[name, pid] - before.processor_s.get((name, pid), 0.0), 2)
        for name, pid in after.processor_s
    }
    tokens = {
        name: after.tokens[name] - before.tokens[name] if name in after.tokens and name in before.tokens else None
        for name in _COUNTERS.values()
    }
    metrics = [step.metrics for step in sorted(steps, key=lambda step: step.step)[1:]]
    return Usage(
        seconds=round(after.at_s - before.at_s, 2),
        cores=len(_processors()),
        processor_s=dict(sorted(spent.items(), key=lambda item: -item[1])),
        idle_s=round(after.idle_s - before.idle_s, 2),
        sampled_tokens=tokens["sampled"],
        prompt_tokens=tokens["prompt"],
        trainer_wait_s=round(sum(each.get("seconds_wait", 0.0) for each in metrics), 2),
        trainer_s=round(sum(each.get("seconds_step", 0.0) for each in metrics), 2),
    )


def usage_lines(usage: Usage) -> list[str]:
    """Return the figures as text."""
    whole, own = usage.seconds * usage.cores, sum(usage.processor_s.values())
    if whole <= 0 or own <= 0:
        return []
    parts = [f"{name} {seconds / own:.0%}" for name, seconds in usage.processor_s.items() if seconds / own >= 0.005]
    idle = min(usage.idle_s / whole, 1.0)
    other = max(0.0, 1.0 - idle - own / whole)
    lines = [
        f"Where {usage.cores} cores went in {usage.seconds:.0f} s of learning: here {own / whole:.0%}, "
        f"other programs {other:.0%}, idle {idle:.0%}",
        f"  processor time here {own:.0f} s: {', '.join(parts)}",
    ]
    figures = []
    if usage.sampled_tokens is not None and usage.prompt_tokens is not None:
        per_s = [tokens / usage.seconds for tokens in (usage.sampled_tokens, usage.prompt_tokens)]
        figures.append(f"vLLM {per_s[0]:,.0f} sampled and {per_s[1]:,.0f} prompt tokens/s")
    if usage.trainer_s:
        figures.append(f"the trainer waited for groups {usage.trainer_wait_s / usage.trainer_s:.0%} of its time")
    return [*lines, *(f"  {each}" for each in figures)]


def _processors() -> list[int]:
    """Numbers of the processors that this process may use."""
    if hasattr(psutil.Process, "cpu_affinity"):
        return list(psutil.Process().cpu_affinity())
    return list(range(psutil.cpu_count() or 1))


def _idle_s() -> float:
    """Seconds in which the processors that this process may use were idle, so far."""
    times = psutil.cpu_times(percpu=True)
    return sum(float(times[number].idle) for number in _processors() if number < len(times))


def _processor_s(pid: int) -> float:
    """Processor seconds of a process and of its descendants, ended ones too; 0 if it has ended."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        total = 0.0
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                taken = each.cpu_times()
                total += taken.user + taken.system
                if hasattr(taken, "children_user"):  # Linux: of children that it has awaited
                    total += taken.children_user + taken.children_system
        return total
    return 0.0


async def _tokens(vllm: str) -> dict[str, int]:
    """Counts of tokens so far; empty if the engine has no metrics."""
    import httpx

    async with httpx.AsyncClient(timeout=_METRICS_S) as client:
        try:
            answer = await client.get(f"{vllm.rstrip('/')}/metrics")
        except httpx.HTTPError:
            return {}
    return tokens_in(answer.text) if answer.is_success else {}


def tokens_in(page: str) -> dict[str, int]:
    """Return the counts of sampled and of prompt tokens in a page of vLLM's metrics, over all its engines."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, int] = {}
    for family in text_string_to_metric_families(page):
        if family.name in _COUNTERS:
            counted = sum(int(each.value) for each in family.samples if each.name == f"{family.name}_total")
            found[_COUNTERS[family.name]] = counted
    return found
