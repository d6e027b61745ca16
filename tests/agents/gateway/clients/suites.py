"""The official clients' own test suites, as their source distributions have them, against any server.

They are written for a mock server that answers every request by the OpenAPI documents, also requests that say nothing
("no model, no input") or that contradict themselves. So no real server passes all of them.
"""

import asyncio
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.agents.gateway.clients.installed import ANTHROPIC_SUITE, OPENAI_SUITE, programs_of, sources_of

SUITE_S = 800.0
"""Longest run of a suite in seconds; only detects that it hangs."""


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of a client that concern the gateway's endpoints."""

    packages: Sequence[str]
    """Of PyPI; the first one is the client."""
    files: tuple[str, ...]
    """Below ``tests/api_resources``."""
    chosen: str
    """Which tests of these files, as pytest's ``-k`` reads it: those that send a request which the gateway serves."""
    path: str = ""
    """Of the API, below the server's address."""

    @property
    def client(self) -> str:
        """The client with its version."""
        return re.sub(r"\[.*\]", "", self.packages[0])


SUITES = {
    "openai": Suite(
        OPENAI_SUITE,
        ("chat/test_completions.py", "test_completions.py", "test_responses.py", "test_models.py"),
        # Stored chat completions, background responses and the deletion of models are not served.
        "not path_params and (create or compact or TestResponses and (retrieve or delete) or "
        "AsyncResponses and (retrieve or delete) or Models and (retrieve or list))",
        "/v1",
    ),
    "anthropic": Suite(
        ANTHROPIC_SUITE,
        ("test_messages.py", "beta/test_messages.py", "test_models.py", "beta/test_models.py"),
        "not path_params",
    ),
}


@dataclass(frozen=True, slots=True)
class Test:
    """A test of a suite, over the clients that it runs with: strict, loose, asynchronous, on aiohttp."""

    passed: int
    run: int
    reason: str = ""
    """Why it fails, in the server's words."""

    @property
    def passes(self) -> bool:
        """Whether it passes with all clients."""
        return self.passed == self.run


async def run_suite(suite: Suite, url: str, folder: Path) -> dict[str, Test]:
    """Run the suite against the server at ``url``: its tests by name. ``folder`` takes the report."""
    source = sources_of(suite.client)
    report = folder / "report.xml"
    # Not with pytest-xdist: the server is on the same two cores.
    argv = [str(programs_of(suite.packages) / "python"), "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider"]
    argv += ["-o", "addopts=", f"--junitxml={report}", "-k", suite.chosen]
    argv += [str(source / "tests/api_resources" / file) for file in suite.files]
    env = {"HOME": str(folder), "PATH": os.environ["PATH"], "TEST_API_BASE_URL": url + suite.path}
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=source, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(SUITE_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode in (0, 1), output.decode(errors="replace")
    return _tests_in(report)


def _tests_in(report: Path) -> dict[str, Test]:
    """The tests of a report in JUnit's format."""
    found: dict[str, Test] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        *_, group = names = case.attrib["classname"].split(".")
        place = "".join(f"{each} " for each in ("beta", "chat") if each in names)
        resource = group.removeprefix("Test").removeprefix("Async").lower()
        name = f"{place}{resource}: {case.attrib['name'].partition('[')[0].removeprefix('test_')}"
        failure = case.find("failure")
        if failure is None:
            failure = case.find("error")
        before = found.get(name, Test(0, 0))
        reason = before.reason or ("" if failure is None else _reason(failure.attrib["message"]))
        found[name] = Test(before.passed + (failure is None), before.run + 1, reason)
    return found


def _reason(message: str) -> str:
    """The server's message within the text of a client's exception."""
    said = re.search(r"Error code: (\d+) - .*?['\"]message['\"]: (['\"])(.*?)\2[,}]", message, re.DOTALL)
    text = f"{said[1]}: {said[3]}" if said else message
    return " ".join(text.split())[:200]


def table(client: str, ours: Mapping[str, Test], theirs: Mapping[str, Test]) -> str:
    """The comparison in Markdown: the share of both servers, and a line for each test that one of them fails."""

    def share(tests: Mapping[str, Test]) -> str:
        passed, run = sum(each.passed for each in tests.values()), sum(each.run for each in tests.values())
        return f"{passed} of {run}"

    def cell(test: Test) -> str:
        return "passes" if test.passes else f"{test.passed} of {test.run}: {test.reason}".replace("|", "\\|")

    lines = [
        f"{client}: the gateway {share(ours)}, vLLM {share(theirs)}",
        "",
        "| test | gateway | vLLM |",
        "|---|---|---|",
    ]
    differing = [name for name in sorted(ours) if not (ours[name].passes and theirs[name].passes)]
    return "\n".join((*lines, *(f"| {name} | {cell(ours[name])} | {cell(theirs[name])} |" for name in differing)))
