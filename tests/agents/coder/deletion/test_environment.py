"""Attempts at a deletion task by scripted models: what they earn, and what they are shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.agents.coder.deletion.environment import (
    DeletionConfig,
    deletion_environment,
    read_tasks,
)
from headrace.agents.coder.deletion.harness import DeletionLimits
from headrace.agents.coder.deletion.installation import Installation
from headrace.agents.coder.deletion.tasks import DeletionTask
from headrace.agents.environments.environment import Cause, EnvironmentUnusable, Part, RolloutResult, Seat
from headrace.agents.sandbox.overlay import Overlay
from headrace.schemas.events import EndStatus
from tests.agents.coder.deletion.conftest import FEATURE, MODULE
from tests.agents.coder.deletion.scripted_model import Call, model, results_in, scripted_model

PATH = f"{MODULE}.py"


def deleted(installed: Installation, task: DeletionTask) -> Call:
    """The call that writes the deleted function again, in front of the definition that followed it."""
    start = installed.source.index(f"def {FEATURE}")
    end = installed.source.index("def hls_to_rgb")
    text = installed.source[start:end]
    return ("edit", {"path": PATH, "old": "def hls_to_rgb", "new": f"{text}def hls_to_rgb"})


async def attempted(
    folder: Path, task: DeletionTask, *script: list[Call], **settings: Any
) -> tuple[RolloutResult, list[str]]:
    """The result of an attempt by a scripted model, and the results of its calls."""
    async with scripted_model(*script) as (url, asked):
        result = await at(folder, task, url, **settings)
    return result, results_in(asked[-1]["messages"]) if asked else []


async def at(folder: Path, task: DeletionTask, url: str, **settings: Any) -> RolloutResult:
    """The result of an attempt by the model at ``url``."""
    config = DeletionConfig([task], folder / "attempts", **settings)
    async with deletion_environment(config) as environment:
        found = await environment.next_task()
        assert found is not None
        assert await environment.next_task() is None
        assert found.task_id == task.task_id
        return await environment.attempt(found, Seat("s", url, "m", {"temperature": 1.0}))


async def test_a_model_that_restores_the_function_earns_everything(
    tmp_path: Path, task: DeletionTask, installed: Installation
) -> None:
    result, shown = await attempted(
        tmp_path,
        task,
        [("todo_add", {"item": FEATURE}), ("run_tests", {}), ("read", {"path": PATH, "start": 1, "lines": 3})],
        [("grep", {"pattern": "^def ", "path": PATH})],
        [deleted(installed, task), ("run_tests", {}), ("todo_done", {"item": FEATURE})],
        [("submit", {})],
        results=tmp_path / "results.jsonl",
    )
    assert (result.status, result.stop) == (EndStatus.COMPLETED, "submitted")
    assert result.rewards == {"deletion": Part(1.0)}
    assert result.metrics == {
        "turns": 4, "tool_calls": 8, "tool_errors": 0, "test_runs": 2, "edits": 1, "open_todos": 0,
    }  # fmt: skip
    todo, failing, read, grep, edit, passing, done = shown
    total = len(task.must_pass)
    assert todo == f"open: {FEATURE}"
    assert failing.startswith(f"{total - len(task.fails_without)} of {total} tests pass\nfailing: ")
    assert f"has no attribute '{FEATURE}'" in failing  # the tests' own message
    assert read.startswith("[lines 1 to 3 of ")
    assert "def hls_to_rgb" in grep
    assert (edit, passing, done) == (f"{PATH} was changed", f"{total} of {total} tests pass", "open: nothing")
    (line,) = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert (line["task_id"], line["reward"], line["turns"]) == (task.task_id, 1.0, 4)


async def test_a_model_that_submits_at_once_or_never_earns_nothing(
    tmp_path: Path, task: DeletionTask, installed: Installation
) -> None:
    submitted, _ = await attempted(tmp_path, task, [("submit", {})])
    assert (submitted.rewards, submitted.stop) == ({"deletion": Part(0.0)}, "submitted")
    never, _ = await attempted(tmp_path, task, [deleted(installed, task)], limits=DeletionLimits(turns=2))
    assert (never.status, never.stop) == (EndStatus.TURNS_EXHAUSTED, "max_turns")
    assert never.rewards == {"deletion": Part(0.0)}
    assert never.metrics["tool_errors"] == 1  # the message without a call


async def test_the_original_is_masked_wherever_a_model_looks_for_it(
    tmp_path: Path, task: DeletionTask, installed: Installation
) -> None:
    libraries = sorted({str(Path(path).parent) for path in installed.interpreter.masked if path.endswith(PATH)})
    assert libraries, "the interpreter of the sandbox has the module"
    copied = "\n".join(
        f"import glob\nfor name in glob.glob('{library}/**/*{MODULE}*', recursive=True):\n"
        "    try: exec(open(name).read())\n"
        "    except (OSError, ValueError): pass"
        for library in libraries
    )
    looks: list[Call] = [("read", {"path": f"{library}/{PATH}"}) for library in libraries]
    looks += [("grep", {"pattern": f"def {FEATURE}", "path": library}) for library in libraries]
    result, shown = await attempted(
        tmp_path,
        task,
        [*looks, ("read", {"path": "../../../etc/passwd"}), ("read", {"path": "/etc/passwd"})],
        [("edit", {"path": PATH, "old": "def hls_to_rgb", "new": f"{copied}\n\ndef hls_to_rgb"}), ("submit", {})],
    )
    assert result.rewards == {"deletion": Part(0.0)}
    assert not [each for each in shown if f"def {FEATURE}(" in each]
    assert all(each.startswith("error: ") for each in shown[: len(libraries)])  # an empty file, or refused
    assert all(each.startswith("error: ") for each in shown[len(looks) : len(looks) + 2])


CHEATS = {
    "exits": ("import os; os._exit(0)", "submitted_no_report"),
    "patches": ("import unittest; unittest.TestCase.run = lambda self, result=None: None", "submitted_patched"),
}


@pytest.mark.parametrize("name", CHEATS)
async def test_a_cheat_is_labelled_and_earns_nothing(tmp_path: Path, task: DeletionTask, name: str) -> None:
    code, stop = CHEATS[name]
    edit = ("edit", {"path": PATH, "old": "def hls_to_rgb", "new": f"{code}\n\ndef hls_to_rgb"})
    result, shown = await attempted(tmp_path, task, [edit, ("run_tests", {})], [("submit", {})])
    assert (result.rewards, result.stop) == ({"deletion": Part(0.0)}, stop)
    assert "tests pass" not in shown[1]


async def test_code_that_closes_its_sandbox_earns_nothing_and_is_no_failure_of_it(
    tmp_path: Path, task: DeletionTask
) -> None:
    edit = ("edit", {"path": PATH, "old": "def hls_to_rgb", "new": "import os; os.chmod('.', 0)\n\ndef hls_to_rgb"})
    looks: list[Call] = [("run_tests", {}), ("run_tests", {}), ("read", {"path": "a" * 300})]
    result, shown = await attempted(tmp_path, task, [edit, *looks], [("submit", {})])
    assert result.failure is None
    assert result.rewards == {"deletion": Part(0.0)}
    assert shown[3].startswith("error: ")


async def test_edited_tests_and_modules_that_hide_others_earn_nothing(tmp_path: Path, task: DeletionTask) -> None:
    empty = "import unittest\nclass Anything(unittest.TestCase):\n    def test_it(self): pass\n"
    result, shown = await attempted(
        tmp_path,
        task,
        [
            ("edit", {"path": task.tests_path, "old": task.tests.splitlines()[0], "new": empty}),
            ("edit", {"path": "./unittest.py", "old": "", "new": "raise SystemExit(0)\n"}),
        ],
        [("submit", {})],
    )
    assert result.rewards == {"deletion": Part(0.0)}
    assert shown[1] == "./unittest.py was changed"


async def test_what_goes_wrong_is_told_or_is_a_failure_with_its_cause(tmp_path: Path, task: DeletionTask) -> None:
    _, shown = await attempted(
        tmp_path,
        task,
        [
            ("edit", {"path": PATH, "old": "def ", "new": "x"}),
            ("edit", {"path": PATH, "old": "", "new": "x"}),
            ("edit", {"path": "/etc/x", "old": "", "new": "x"}),
            ("read", {"path": "missing.py"}),
            ("read", {"path": PATH, "start": 100_000}),
            ("grep", {"pattern": "(", "path": "."}),
            ("grep", {"pattern": "no such text", "path": "."}),
        ],
    )
    *errors, nothing = shown[:7]
    assert all(each.startswith("error: ") for each in errors)
    assert "times in colorsys.py, not once" in errors[0]
    assert "give the text to replace" in errors[1]
    assert nothing == "nothing found"

    async with model(lambda path, body: 400) as (url, _):
        refused = await at(tmp_path, task, url)
    assert refused.failure is not None
    assert (refused.failure.label, refused.failure.cause) == ("refused", Cause.INFRASTRUCTURE)
    async with model(lambda path, body: {"choices": []}) as (url, _):
        away = await at(tmp_path, task, url)
    assert away.failure is not None
    assert (away.failure.label, away.failure.cause) == ("policy_away", Cause.INFRASTRUCTURE)


async def test_a_full_context_and_the_time_limit_end_an_attempt_without_a_reward(
    tmp_path: Path, task: DeletionTask
) -> None:
    def full(path: str, body: Any) -> Any:
        if len(body["messages"]) > 1:
            return 400
        return {"choices": [{"finish_reason": "length", "message": {"role": "assistant", "content": "Well, "}}]}

    async with model(full) as (url, asked):
        result = await at(tmp_path, task, url)
    assert (result.status, result.stop) == (EndStatus.BUDGET_EXHAUSTED, "context_exhausted")
    assert result.rewards == {"deletion": Part(0.0)}
    assert "cut off at its limit of tokens" in asked[-1]["messages"][-1]["content"]
    late, _ = await attempted(tmp_path, task, [("run_tests", {})], timeout_s=0.001)
    assert late.failure is not None
    assert (late.failure.label, late.failure.cause) == ("rollout_timeout", Cause.ROLLOUT)


def test_a_file_that_has_no_tasks_says_where(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"module": "graphlib"}\n')
    with pytest.raises(EnvironmentUnusable, match=r"tasks\.jsonl:1: a line is no deletion task"):
        read_tasks(file)
    file.write_text("")
    with pytest.raises(EnvironmentUnusable, match="headrace deletion-tasks"):
        read_tasks(file)


async def test_a_machine_without_isolated_sandboxes_is_refused(
    tmp_path: Path, task: DeletionTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.agents.sandbox.protocol import ProviderUnavailable

    async def unavailable(folder: Path) -> Overlay:
        raise ProviderUnavailable("apt-get install bubblewrap")

    monkeypatch.setattr(Overlay, "create", unavailable)
    with pytest.raises(EnvironmentUnusable, match="apt-get install bubblewrap"):
        async with deletion_environment(DeletionConfig([task], tmp_path)):
            pass
