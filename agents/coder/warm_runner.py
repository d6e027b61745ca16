"""A process that forks a child for each test run: about a millisecond instead of an interpreter's start.

    with WarmRunner() as runner:
        outputs, error = runner.run(test_run, repository.texts())

For simulators, whose attempts run by the thousand. All attempts share the process's folder and user, so it isolates
crashes and time, not intentions: for policies whose vocabulary is the grammar's. Others get a sandbox each.
"""

import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from headrace.agents.coder.grading import Outputs
from headrace.agents.coder.harness import TestRun
from headrace.agents.coder.sandboxed_tests import command, job, parse_outputs


class WarmRunner:
    """The process, in which no candidate code ever runs: only in its children."""

    def __init__(self, python: str = sys.executable) -> None:
        self._process = subprocess.Popen(
            [*command(python), "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}
        )

    def run(self, test_run: TestRun, texts: Mapping[str, bytes]) -> tuple[Outputs, str | None]:
        """Return the outputs of ``test_run`` on ``texts``, and why they are incomplete or ``None``.

        Raises ``RuntimeError`` if the process is gone.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None or self._process.poll() is not None:
            raise RuntimeError(f"the warm runner ended with exit code {self._process.returncode}: start another")
        stdin.write(job(test_run, texts) + b"\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise RuntimeError("the warm runner ended during a run: start another")
        return parse_outputs(answer)

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
