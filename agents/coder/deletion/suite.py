"""Runs a module's tests in a sandbox, and decides what the report is worth.

await run_suite(sandbox, "graphlib", "test_graphlib", python)
→  SuiteResult(SuiteOutcome.RAN, frozenset({"test_graphlib.TestTopologicalSort.test_simple_cases", …}))
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from typing import Any

from headrace.agents.sandbox.protocol import Outcome, Sandbox

SECONDS = 60.0
"""Longest time for a suite."""


class SuiteOutcome(StrEnum):
    """How a run of the tests ended."""

    RAN = "ran"
    """With a report, whatever the tests found."""
    NO_REPORT = "no_report"
    """The process ended before the report: an exit, a crash, a limit."""
    FORGED = "forged"
    """The report is not that of the program: another nonce, or no valid JSON."""
    PATCHED = "patched"
    """A test that has to fail passed: the candidate changed the test framework."""


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """What the tests found."""

    outcome: SuiteOutcome
    passed: frozenset[str] = frozenset()
    """Names of the tests that passed; none unless the outcome is ``ran``."""
    messages: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The ends of a few errors by test, for the policy; not compared, because they may have addresses."""


def parse_report(text: bytes, nonce: str) -> SuiteResult:
    """Return the result in ``text``, which was written next to untrusted code; never raises."""
    if not text:
        return SuiteResult(SuiteOutcome.NO_REPORT)
    try:
        value: Any = json.loads(text)
        passed, given, canary = value["passed"], value["nonce"], value["canary"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return SuiteResult(SuiteOutcome.FORGED)
    if given != nonce or not isinstance(passed, list):
        return SuiteResult(SuiteOutcome.FORGED)
    if canary != "ok":
        return SuiteResult(SuiteOutcome.PATCHED)
    messages = value.get("messages")
    shown = {str(name): str(text) for name, text in messages.items()} if isinstance(messages, dict) else {}
    return SuiteResult(SuiteOutcome.RAN, frozenset(str(name) for name in passed), shown)


async def run_suite(sandbox: Sandbox, module: str, tests: str, python: str, *, seconds: float = SECONDS) -> SuiteResult:
    """Return the result of the tests in the module ``tests`` on the files in ``sandbox``; ``module``: what they test.
    ``python``: the interpreter. ``seconds``: longest time."""
    program = files("headrace.agents.coder.deletion").joinpath("suite_program.py").read_text(encoding="utf-8")
    nonce = secrets.token_hex(16)
    asked = json.dumps({"module": module, "tests": tests, "nonce": nonce}).encode()
    done = await sandbox.execute([python, "-I", "-S", "-B", "-c", program], stdin=asked, timeout_s=seconds)
    if done.outcome is not Outcome.COMPLETED or done.exit_code != 0:
        return SuiteResult(SuiteOutcome.NO_REPORT)
    return parse_report(done.stdout, nonce)
