"""Carries out the tools of an attempt in its sandbox.

    workspace = Workspace(sandbox, task, interpreter)
    await workspace.carry_out(Action("call_1", "read", {"path": "graphlib.py", "start": 1, "lines": 3}))
    →  ("[lines 1 to 3 of 250]\\nfrom types import GenericAlias\\n…", False)

``read`` and ``grep`` also take absolute paths, which the sandbox resolves: a policy may look into the standard library,
and finds the original of the module masked.
"""

from dataclasses import dataclass, field
from posixpath import normpath
from typing import Any

from headrace.agents.coder.deletion.actions import EDIT, GREP, MAX_LINES, READ, RUN_TESTS, Action
from headrace.agents.coder.deletion.installation import Interpreter
from headrace.agents.coder.deletion.suite import SuiteOutcome, SuiteResult, run_suite
from headrace.agents.coder.deletion.tasks import DeletionTask
from headrace.agents.sandbox.protocol import CommandRefused, FileMissing, Outcome, PathRefused, Sandbox, TooLarge

LOOK_S = 10.0
"""Longest time of a read or grep in the sandbox, in seconds."""
GREP_LINES = 100
"""Most lines that a grep shows of a file."""
SHOWN_NAMES = 20
"""Most names of failing tests that are shown."""


class ToolRefused(ValueError):
    """A call that cannot be carried out; the message says why, for the policy."""


@dataclass(slots=True)
class Workspace:
    """The files of one attempt."""

    sandbox: Sandbox
    task: DeletionTask
    interpreter: Interpreter
    edited: dict[str, None] = field(default_factory=dict)
    """Files that the policy has edited, in order."""

    async def carry_out(self, action: Action) -> tuple[str, bool]:
        """Return the result of a call, and whether it is an error. What the policy can bring about raises nothing;
        other errors of the sandbox are raised."""
        given: dict[str, Any] = dict(action.arguments)
        try:
            match action.tool:
                case tool if tool == READ:
                    return await self._read(**given), False
                case tool if tool == GREP:
                    return await self._grep(**given), False
                case tool if tool == EDIT:
                    return await self._edit(**given), False
                case tool if tool == RUN_TESTS:
                    return await self._run_tests(), False
                case tool:
                    raise ToolRefused(f"{tool} is not carried out in the sandbox")
        except (ToolRefused, PathRefused, FileMissing, TooLarge, CommandRefused) as error:
            return str(error), True

    async def written(self) -> dict[str, bytes]:
        """Return the files that the policy has edited, as they are now; without those that its code removed."""
        found = {}
        for path in self.edited:
            try:
                found[path] = await self.sandbox.read(path)
            except (PathRefused, FileMissing, TooLarge):
                continue  # code of the policy replaced it: the verdict then has the file of the task
        return found

    async def _read(self, path: str, start: int, lines: int) -> str:
        content = await self._looked(["cat", "--", path]) if path.startswith("/") else await self.sandbox.read(path)
        every = content.decode(errors="replace").splitlines(keepends=True)
        shown = every[start - 1 : start - 1 + min(lines, MAX_LINES)]
        if not shown:
            raise ToolRefused(f"{path} has {len(every)} lines")
        return f"[lines {start} to {start + len(shown) - 1} of {len(every)}]\n{''.join(shown)}"

    async def _grep(self, pattern: str, path: str) -> str:
        command = ["grep", "-rnIE", "-m", str(GREP_LINES), "-e", pattern, "--", path]
        found = (await self._looked(command, nothing=1)).decode(errors="replace")
        return found or "nothing found"

    async def _looked(self, command: list[str], nothing: int | None = None) -> bytes:
        """Return what a command shows; ``nothing``: its exit code if there is nothing to show."""
        done = await self.sandbox.execute(command, timeout_s=LOOK_S)
        if done.outcome is Outcome.OUTPUT_TRUNCATED or done.exit_code in (0, nothing):
            return done.stdout
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise ToolRefused(said or f"the command ended with {done.outcome}, exit code {done.exit_code}")

    async def _edit(self, path: str, old: str, new: str) -> str:
        try:
            before = (await self.sandbox.read(path)).decode()
        except FileMissing:
            if old:
                raise
            before = ""
        except UnicodeDecodeError as error:
            raise ToolRefused(f"{path} is no text") from error
        if not old and before:
            raise ToolRefused(f"{path} exists: give the text to replace")
        if old and (count := before.count(old)) != 1:
            raise ToolRefused(f"the old text occurs {count} times in {path}, not once")
        await self.sandbox.write(path, (before.replace(old, new) if old else new).encode(errors="replace"))
        self.edited[normpath(path)] = None
        return f"{path} was changed"

    async def _run_tests(self) -> str:
        result = await run_suite(self.sandbox, self.task.module, self.task.tests_module, self.interpreter.python)
        return shown_result(result, self.task.must_pass)


def shown_result(result: SuiteResult, must_pass: tuple[str, ...]) -> str:
    """Return what a policy is shown of a run of the tests."""
    match result.outcome:
        case SuiteOutcome.NO_REPORT:
            return "the tests ended without a report: an exit, a crash or a time-out"
        case SuiteOutcome.FORGED | SuiteOutcome.PATCHED:
            return "the report of the tests is not genuine: the code changes the test framework"
        case SuiteOutcome.RAN:
            pass
    failing = [name for name in must_pass if name not in result.passed]
    text = f"{len(must_pass) - len(failing)} of {len(must_pass)} tests pass"
    if failing:
        more = f" and {len(failing) - SHOWN_NAMES} more" if len(failing) > SHOWN_NAMES else ""
        text += f"\nfailing: {', '.join(failing[:SHOWN_NAMES])}{more}"
    return "\n\n".join([text, *(f"{name}\n{message}" for name, message in result.messages.items())])
