"""The warm runner agrees with the sandbox and with this process, and survives what candidates do."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from headrace.agents.coder import sandboxed_tests
from headrace.agents.coder.demonstrations import Mistakes
from headrace.agents.coder.harness import Purpose, TestRun
from headrace.agents.coder.sandboxed_tests import run_in_sandbox
from headrace.agents.coder.trusted_run import run_trusted
from headrace.agents.coder.warm_runner import WarmRunner
from headrace.agents.sandbox.local import Local
from tests.agents.coder.players import play, training_task


@pytest.fixture(scope="module")
def runner() -> Iterator[WarmRunner]:
    with WarmRunner() as started:
        yield started


def test_it_agrees_with_this_process_on_what_sloppy_players_write(runner: WarmRunner) -> None:
    different = 0
    for number in range(40):
        task = training_task(number)
        harness, _, _ = play(task, mistakes=Mistakes(), seed=number)
        run = TestRun(Purpose.VERDICT, task.calls(), task.verdict_inputs)
        here = run_trusted(harness.repository, task.calls(), task.verdict_inputs)
        assert runner.run(run, harness.repository.texts()) == (here, None)
        different += harness.repository != task.reference
    assert different > 10


async def test_it_agrees_with_a_sandbox(runner: WarmRunner, tmp_path: Path) -> None:
    provider = Local(tmp_path, warn=False)
    for number in Random(0).sample(range(1000), 5):
        task = training_task(number)
        run = TestRun(Purpose.CHECK, task.calls(), task.check_inputs)
        sandbox = await provider.start(task.broken.texts())
        assert await run_in_sandbox(sandbox, run) == runner.run(run, task.broken.texts())
        await sandbox.stop()


def test_no_candidate_changes_the_process_for_the_next(runner: WarmRunner) -> None:
    task = training_task(0)
    run = TestRun(Purpose.VERDICT, task.calls(), task.verdict_inputs)
    before = runner.run(run, task.reference.texts())
    nested = (
        "import os; "
        "[os.write(at, b'[' * 60_000 + b'\\n') for at in range(3, 9) if os.path.exists(f'/proc/self/fd/{at}')]"
    )
    codes = ("import json; json.dumps = None", "import builtins; builtins.int = str", "import os; os._exit(3)", nested)
    for code in codes:
        texts = {path: code.encode() + b"\n" + text for path, text in task.reference.texts().items()}
        runner.run(run, texts)
        assert runner.run(run, task.reference.texts()) == before


def test_a_candidate_that_leaves_its_group_is_ended(runner: WarmRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxed_tests, "SECONDS", 0.5)
    task = training_task(0)
    run = TestRun(Purpose.VERDICT, task.calls(), task.verdict_inputs)
    leaves = b"import os, time; os.setpgid(0, os.getpgid(os.getppid())); time.sleep(60)\n"
    texts = {path: leaves + text for path, text in task.reference.texts().items()}
    assert runner.run(run, texts) == ({}, "timed_out")


def test_an_ended_runner_says_so() -> None:
    runner = WarmRunner()
    runner.close()
    task = training_task(0)
    with pytest.raises(RuntimeError, match="start another"):
        runner.run(TestRun(Purpose.CHECK, task.calls(), task.check_inputs), task.broken.texts())
