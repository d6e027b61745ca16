"""Where processors and time went: from counters to figures."""

import asyncio
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import cast

from headrace.deploy.demo.usage import (
    THIS_PROCESS,
    Reading,
    Usage,
    _processor_s,
    read_counters,
    tokens_in,
    usage_lines,
    used,
)
from headrace.deploy.stack.stack import Stack
from headrace.schemas.records.step import Step

PAGE = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="policy"} 1200.0
vllm:prompt_tokens_total{engine="1",model_name="policy"} 300.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="policy"} 40.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="policy"} 3.0
"""


def step(number: int, wait: float, whole: float) -> Step:
    metrics = {"seconds_wait": wait, "seconds_step": whole}
    return Step(
        run="demo", step=number, version=number, groups=[], config_sha256="", data_sha256="", metrics=metrics
    )  # fmt: skip


BEFORE = Reading(10.0, {("vllm", 5): 3.0, ("trainer", 6): 8.0}, 100.0, {"sampled": 10, "prompt": 100})
AFTER = Reading(30.0, {("vllm", 5): 19.0, ("trainer", 7): 4.0}, 104.0, {"sampled": 1010, "prompt": 8100})


def test_tokens_are_those_of_all_engines() -> None:
    assert tokens_in(PAGE) == {"sampled": 40, "prompt": 1500}
    assert tokens_in("") == {}


def test_what_was_used_is_the_difference_and_a_restarted_part_counts_from_its_restart() -> None:
    usage = used(BEFORE, AFTER, [step(2, 1.0, 4.0), step(1, 90.0, 99.0), step(3, 2.0, 8.0)])
    assert usage.seconds == 20.0
    assert usage.processor_s == {"vllm": 16.0, "trainer": 4.0}
    assert usage.idle_s == 4.0
    assert (usage.sampled_tokens, usage.prompt_tokens) == (1000, 8000)
    assert (usage.trainer_wait_s, usage.trainer_s) == (3.0, 12.0)
    assert used(BEFORE, Reading(30.0, {}, 104.0, {}), []).sampled_tokens is None


def test_shares_are_of_all_processors() -> None:
    usage = used(BEFORE, AFTER, [step(1, 90.0, 99.0), step(2, 1.0, 4.0)]).model_copy(update={"cores": 2})
    assert usage_lines(usage) == [
        "Where 2 cores went in 20 s of learning: here 50%, other programs 40%, idle 10%",
        "  processor time here 20 s: vllm 80%, trainer 20%",
        "  vLLM 50 sampled and 400 prompt tokens/s",
        "  the trainer waited for groups 25% of its time",
    ]


def test_what_is_not_known_is_left_out() -> None:
    unknown = Usage(
        seconds=10.0, cores=1, processor_s={}, idle_s=20.0, sampled_tokens=None, prompt_tokens=None,
        trainer_wait_s=0.0, trainer_s=0.0,
    )  # fmt: skip
    assert usage_lines(unknown) == []
    only = unknown.model_copy(update={"processor_s": {"vllm": 5.0}, "idle_s": 5.0})
    assert usage_lines(only) == [
        "Where 1 cores went in 10 s of learning: here 50%, other programs 0%, idle 50%",
        "  processor time here 5 s: vllm 100%",
    ]


BUSY = "import time; began = time.process_time()\nwhile time.process_time() - began < 0.3: pass"


def test_a_part_is_counted_with_what_it_started() -> None:
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}]); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while _processor_s(process.pid) < 0.3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.communicate()
    assert _processor_s(process.pid) == 0.0


def test_programs_of_the_agent_count_as_this_process_and_parts_do_not() -> None:
    with subprocess.Popen([sys.executable, "-c", f"{BUSY}\ninput()"], stdin=subprocess.PIPE) as part:
        stack = cast(Stack, SimpleNamespace(parts={"trainer": SimpleNamespace(pid=part.pid)}, addresses={}))
        before = asyncio.run(read_counters(stack))
        subprocess.run([sys.executable, "-c", BUSY], check=True)
        deadline = time.monotonic() + 30
        while (after := asyncio.run(read_counters(stack))).processor_s["trainer", part.pid] < 0.2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        part.communicate(b"\n")
    usage = used(before, after, [])
    assert usage.processor_s["trainer"] > 0.1
    assert 0.2 <= usage.processor_s[THIS_PROCESS] < 5
    assert usage.idle_s <= usage.seconds * usage.cores + 1
