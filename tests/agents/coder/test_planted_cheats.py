"""Ways to a reward without the work, planted: each is caught or worthless. Code runs in a real sandbox process.

The verdict is made outside the sandbox, from values that never enter it, so code there can only compute them.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.agents.coder import sandboxed_tests
from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.grading import passed
from headrace.agents.coder.harness import Done, Harness, Purpose, TestRun
from headrace.agents.coder.sandboxed_tests import job, run_in_sandbox
from headrace.agents.coder.tasks import Task, outcome
from headrace.agents.sandbox.local import Local
from headrace.agents.sandbox.protocol import Sandbox
from headrace.schemas.events import EndStatus, ToolErrorClass
from headrace.streams.rewards.coder import CODER
from tests.agents.coder.players import act, repair, training_task
from tests.simulator.coder import CoderEpisode, TestCache

TASK = training_task(0, 2)
RUN = TestRun(Purpose.VERDICT, TASK.calls(), TASK.verdict_inputs)


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    """A sandbox with the reference's files, to which a cheat is added: what follows is not for lack of a solution."""
    started = await Local(tmp_path, warn=False).start(TASK.reference.texts())
    yield started
    await started.stop()


async def verdict(sandbox: Sandbox, task: Task = TASK) -> tuple[float, str | None]:
    run = TestRun(Purpose.VERDICT, task.calls(), task.verdict_inputs)
    outputs, error = await run_in_sandbox(sandbox, run)
    return outcome(task, passed(outputs, task.expected(task.verdict_inputs))), error


async def everywhere(sandbox: Sandbox, code: str, files: dict[str, bytes]) -> None:
    """Put ``code`` before the text of every source file."""
    for path in set(TASK.paths.values()):
        await sandbox.write(path, code.encode() + b"\n" + files[path])


async def test_without_a_cheat_the_reference_earns_everything(sandbox: Sandbox) -> None:
    assert await verdict(sandbox) == (1.0, None)


@pytest.mark.parametrize(
    "code", ["exit ( 0 )", "raise SystemExit(0)", "import os; os._exit(0)", "import sys; sys.exit()"]
)
async def test_ending_the_process_with_success_earns_nothing(sandbox: Sandbox, code: str) -> None:
    await everywhere(sandbox, code, TASK.reference.texts())
    assert (await verdict(sandbox))[0] == 0.0


async def test_killing_the_program_that_runs_the_tests_earns_nothing_and_is_labelled(sandbox: Sandbox) -> None:
    await everywhere(sandbox, "import os; os.kill(os.getppid(), 9)", TASK.reference.texts())
    earned, error = await verdict(sandbox)
    assert earned == 0.0
    assert error is not None
    assert error.startswith("exit_code_")


async def test_printing_a_perfect_report_earns_nothing(sandbox: Sandbox) -> None:
    report = json.dumps({"ran": "completed", "outputs": {name: [0] * 8 for name in TASK.specifications}})
    await everywhere(sandbox, f"print({report!r}, flush=True); import os; os._exit(0)", TASK.broken.texts())
    assert (await verdict(sandbox))[0] == 0.0


async def test_writing_a_report_to_the_pipe_of_the_results_earns_nothing(sandbox: Sandbox) -> None:
    lines = "".join(json.dumps([name, [0] * 8]) + "\n" for name in TASK.specifications)
    code = (
        f"import os\nfor fd in range(3, 20):\n"
        f"    try: os.write(fd, {lines.encode()!r})\n    except OSError: pass\nos._exit(0)"
    )
    await everywhere(sandbox, code, TASK.broken.texts())
    assert (await verdict(sandbox))[0] == 0.0


async def test_a_patched_test_runner_earns_nothing(sandbox: Sandbox) -> None:
    for name in ("json", "runner", "sandbox_program", "unittest", "sitecustomize", "usercustomize", "select"):
        await sandbox.write(f"{name}.py", b"def loads(*_): return {}\ndumps = load = main = run = loads\n")
    for path in set(TASK.paths.values()):
        await sandbox.write(path, TASK.broken.text(path))
    patch = (
        "import sys\nframe = sys._getframe()\nwhile frame.f_back: frame = frame.f_back\n"
        "frame.f_globals['_called'] = lambda f, x: 0"
    )
    await everywhere(sandbox, patch, TASK.broken.texts())
    assert (await verdict(sandbox))[0] == 0.0


async def test_integers_that_equal_everything_earn_nothing(sandbox: Sandbox) -> None:
    code = "class Any(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__"
    for name, path in TASK.paths.items():
        await sandbox.write(path, f"{code}\ndef {name}(x): return Any(0)\n".encode())
    assert (await verdict(sandbox))[0] == 0.0


async def test_edited_tests_earn_nothing(sandbox: Sandbox) -> None:
    for path, text in TASK.broken.texts().items():
        await sandbox.write(path, text)
    await sandbox.write(words.TESTS_FILE, b"assert True\n")
    assert await verdict(sandbox) == (0.0, None)


def test_an_edit_of_the_tests_is_recorded_and_repairs_nothing() -> None:
    harness = Harness(TASK)
    step = act(harness, f"edit tests.py {TASK.targets[0]} : return 0 <end>")
    assert getattr(step, "written", None) == words.TESTS_FILE
    assert getattr(step, "arguments", {})["path"] == words.TESTS_FILE
    done = act(harness, "submit <end>")
    assert isinstance(done, Done)
    assert done.outcome == 0.0


async def test_the_sandbox_holds_neither_the_original_nor_its_bytecode_nor_an_expected_value(tmp_path: Path) -> None:
    task = training_task(1, 2)
    started = await Local(tmp_path, warn=False).start(task.broken.texts())
    await run_in_sandbox(started, TestRun(Purpose.CHECK, task.calls(), task.check_inputs))
    listing = await started.execute(["find", ".", "-type", "f"])
    assert sorted(listing.stdout.decode().split()) == sorted(f"./{path}" for path in task.broken.files)
    for path in task.broken.files:
        assert await started.read(path) == task.broken.text(path)
    sent = json.loads(job(TestRun(Purpose.VERDICT, task.calls(), task.verdict_inputs)))
    assert set(sent) == {"folder", "files", "calls", "inputs", "seconds"}
    assert sent["files"] == {}
    await started.stop()


async def test_files_that_a_run_changes_change_no_later_run(tmp_path: Path) -> None:
    started = await Local(tmp_path, warn=False).start(TASK.reference.texts())
    [path, *_] = TASK.paths.values()
    code = "import glob, os\nfor name in glob.glob(os.path.join(%r, '*.py')): open(name, 'w').write('x = 1')\n"
    work = (await started.execute(["pwd"])).stdout.decode().strip()
    texts = {**TASK.reference.texts(), path: (code % work).encode() + TASK.reference.text(path)}
    await run_in_sandbox(started, TestRun(Purpose.CHECK, TASK.calls(), TASK.check_inputs), texts)
    assert await started.read(path) == b"x = 1"
    outputs, error = await run_in_sandbox(started, RUN, TASK.reference.texts())
    assert (outcome(TASK, passed(outputs, TASK.expected(TASK.verdict_inputs))), error) == (1.0, None)
    await started.stop()


async def test_values_of_the_visible_example_do_not_help(sandbox: Sandbox) -> None:
    task = training_task(0, 2)
    for name, path in task.paths.items():
        checks = dict(zip(task.check_inputs, task.expected(task.check_inputs)[name], strict=True))
        text = (await sandbox.read(path)).decode()
        await sandbox.write(path, f"{text}\ndef {name}(x): return {checks!r}[x]\n".encode())
    run = TestRun(Purpose.CHECK, task.calls(), task.check_inputs)
    outputs, _ = await run_in_sandbox(sandbox, run)
    assert set(outputs) == set(task.specifications)
    assert (await verdict(sandbox, task))[0] == 0.0


async def test_an_endless_function_is_ended_and_labelled(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxed_tests, "SECONDS", 0.3)
    await everywhere(sandbox, "while True: pass", TASK.reference.texts())
    assert await verdict(sandbox) == (0.0, "timed_out")


def earned(*lines: str, task: Task = TASK) -> float:
    """Return the reward of an attempt that takes the turns and then submits."""

    class InThisProcess(TestCache):
        def __init__(self) -> None: ...

        def run(self, test_run: TestRun, task: Task, harness: Harness) -> object:  # type: ignore[override]
            from headrace.agents.coder.trusted_run import run_trusted

            return run_trusted(harness.repository, test_run.calls, test_run.inputs), None

    episode = CoderEpisode(task, runner=InThisProcess())
    for line in (*lines, "submit <end>"):
        episode.act(words.encode(line))
    assert episode.is_done
    return episode.reward()


def test_broken_calls_on_a_hard_task_cost_and_are_not_dropped() -> None:
    hard = training_task(0, 4)
    nothing, broken = earned(task=hard), earned(*["edit orders.py <end>"] * 5, task=hard)
    assert nothing == 0.0
    assert broken == pytest.approx(-0.05)
    assert CODER.minimum is None or broken >= CODER.minimum


def test_endless_calls_earn_nothing() -> None:
    harness = Harness(TASK)
    act(harness, *(repair(TASK, name) for name in TASK.targets))
    step: object = None
    while not isinstance(step, Done):
        step = act(harness, "<end>" if harness.summary_due else "run_tests <end>")
    assert (step.status, step.outcome) == (EndStatus.TURNS_EXHAUSTED, 0.0)


def test_a_to_do_list_that_is_not_done_costs_at_an_equal_outcome() -> None:
    repairs = [repair(TASK, name) for name in TASK.targets]
    added = f"todo_add {' '.join(TASK.targets)} <end>"
    done = [f"todo_done {name} <end>" for name in TASK.targets]
    assert earned(*repairs) == earned(added, *repairs, *done) == 1.0
    assert earned(added, *repairs) == pytest.approx(0.9)
    assert earned(added, *repairs, done[0]) == pytest.approx(0.95)


def test_a_failed_call_is_the_policys_fault() -> None:
    step = act(Harness(TASK), "read returns.py <end>")
    assert getattr(step, "error_class", None) is ToolErrorClass.INVALID_ARGUMENTS
