"""Runs of the Claude Agent SDK, which starts Claude Code.

    recording = HeadraceRecording(headrace, agent="checkout")
    async for message in recording.query(prompt="…", options=options): ...
    async with recording.client(options) as client: ...

``query`` is that of the SDK, and ``client`` its ``ClaudeSDKClient``. Each query and each connection from outside is a
trajectory, which ends with it; each sub-agent of Claude Code is a sub-agent, also in the background. Prompts are those
that Claude Code reports to a hook, ``UserPromptSubmit``; everything else is read from the messages as the program
receives them. Claude Code does not show its requests: the system prompt and its reminders are not recorded.

Inside ``headrace.gateway_session`` the session is written into ``ANTHROPIC_BASE_URL``, and nothing is sent.

Needs the extra ``claude-agent-sdk``. Nothing is consumed; messages, errors and other hooks are left as they are.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any, Self
from urllib.parse import quote

from headrace.agents.adapters.claude_run import ClaudeRun
from headrace.agents.adapters.gateway_session import SESSION_HEADER, session_headers
from headrace.agents.adapters.recorder import UNNAMED, Host, Quietly
from headrace.agents.adapters.runs import begin_run, library_of
from headrace.agents.trajectory import CURRENT, Trajectory

with library_of("claude-agent-sdk"):
    import claude_agent_sdk as sdk

BASE_URL = "ANTHROPIC_BASE_URL"
"""Environment variable with the address that Claude Code calls."""

HOOK = "UserPromptSubmit"
"""The hook that tells prompts, also those that Claude Code writes itself."""


class HeadraceRecording:
    """Records runs: any number of them, also at the same time."""

    def __init__(self, headrace: Host, *, agent: str = "claude-agent-sdk", task_id: str = UNNAMED) -> None:
        """``agent``, ``task_id``: of trajectories that are opened for runs."""
        self._headrace = headrace
        self._agent = agent
        self._task_id = task_id
        self._recorder = headrace.recorder(agent=agent, record_tools=False)
        self.quietly = self._recorder.quietly

    async def query(
        self, *, prompt: Any, options: Any = None, transport: Any = None, task_id: str | None = None
    ) -> AsyncIterator[Any]:
        """Yield what ``claude_agent_sdk.query`` yields; ``task_id``: of the trajectory."""
        run, given = self.begin(options or sdk.ClaudeAgentOptions(), task_id)
        error: BaseException | None = None
        try:
            async with aclosing(sdk.query(prompt=prompt, options=given, transport=transport)) as messages:
                async for message in Seen(run, messages, self.quietly):
                    yield message
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.end(run, error)

    def client(self, options: Any = None, transport: Any = None, *, task_id: str | None = None) -> "RecordedClient":
        """Return a client that is not connected yet; ``task_id``: of the trajectory."""
        return RecordedClient(self, options, transport, task_id)

    def begin(self, options: Any, task_id: str | None) -> tuple[ClaudeRun | None, Any]:
        """Begin a run; returns it, and its options: those of the program with the hook and the gateway's session. If it
        cannot be recorded, there is no run, and they are the program's."""
        with self.quietly:
            begun = begin_run(
                self._headrace,
                CURRENT.get(),
                task_id=self._task_id if task_id is None else task_id,
                agent=self._agent,
                session=options.session_id or options.resume,
            )
            run = ClaudeRun(begun, self._recorder)
            hooks = dict(options.hooks or {})
            hooks[HOOK] = [*hooks.get(HOOK, ()), sdk.HookMatcher(hooks=[run.prompted])]
            return run, replace(options, hooks=hooks, env=_env(options.env, run.trajectory))
        return None, options

    def end(self, run: ClaudeRun | None, error: BaseException | None) -> None:
        """End a run, unless it has ended. ``error``: what ended it."""
        with self.quietly:
            if run is not None:
                run.end(error)


class Seen:
    """Messages that a run records as they pass."""

    def __init__(self, run: ClaudeRun | None, messages: AsyncIterator[Any], quietly: Quietly) -> None:
        self._run = run
        self._messages = messages
        self._quietly = quietly

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        with _current(self._run):
            message = await anext(self._messages)
        with self._quietly:
            if self._run is not None:
                self._run.saw(message)
        return message


class RecordedClient(sdk.ClaudeSDKClient):  # type: ignore[misc]  # the library may be absent where types are checked
    """A client of the SDK; each connection is a run."""

    def __init__(self, recording: HeadraceRecording, options: Any, transport: Any, task_id: str | None) -> None:
        self._given = options or sdk.ClaudeAgentOptions()
        super().__init__(self._given, transport)
        self.options: Any = self._given
        self._recording = recording
        self._task_id = task_id
        self._run: ClaudeRun | None = None

    async def connect(self, prompt: Any = None) -> None:
        """Connect, and begin a run; one that has not ended ends."""
        self._recording.end(self._run, None)
        run, self.options = self._recording.begin(self._given, self._task_id)
        try:
            with _current(run):
                await super().connect(prompt)
        except BaseException as error:  # after the SDK has disconnected
            self._recording.end(run, error)
            raise
        self._run = run

    async def receive_messages(self) -> AsyncIterator[Any]:
        """Yield all messages."""
        try:
            async for message in Seen(self._run, super().receive_messages(), self._recording.quietly):
                yield message
        except Exception as error:
            self._recording.end(self._run, error)
            raise

    async def disconnect(self) -> None:
        """Disconnect, and end the run."""
        try:
            await super().disconnect()
        finally:
            self._recording.end(self._run, None)

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self._recording.end(self._run, error)
        return bool(await super().__aexit__(kind, error, trace))


@contextmanager
def _current(run: ClaudeRun | None) -> Iterator[None]:
    """Have code that the SDK starts find the run's trajectory: tools of MCP servers in this process."""
    outer = CURRENT.get()
    if run is not None:
        CURRENT.set(run.trajectory)
    try:
        yield
    finally:
        CURRENT.set(outer)


def _env(env: dict[str, str], trajectory: Trajectory) -> dict[str, str]:
    """Return the environment of Claude Code, with the gateway's session in the address unless one is there."""
    name = session_headers(trajectory).get(SESSION_HEADER)
    address = env.get(BASE_URL) or os.environ.get(BASE_URL)
    if name is None or not address or "/s/" in address:
        return env
    return {**env, BASE_URL: f"{address.rstrip('/')}/s/{quote(name, safe='')}"}
