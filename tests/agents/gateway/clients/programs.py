"""The programs, each as its documentation starts it: an environment of its own, an empty home, no network but loopback.

Nothing of them is changed. What they are told is the address of the gateway, a key, the model's name, and not to look
for updates.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.agents.gateway.clients.installed import MINI_SWE_AGENT, SMOLAGENTS, binary, programs_of

CLAUDE_CODE = "@anthropic-ai/claude-code@2.1.330"

TASK = "say hello using the shell"
DONE = "I said hello."
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""With this line mini-swe-agent ends."""

OFFLINE = {
    # Nothing listens on the discard port: what looks for another host than loopback is refused at once.
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9"),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
}


@dataclass(frozen=True, slots=True)
class Start:
    """How a program is started."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Texts of files by their path in the home folder."""

    def with_options(self, options: Sequence[str]) -> "Start":
        """The same with further options."""
        return replace(self, argv=(*self.argv, *options))


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and what it makes of the answers of a model."""

    name: str
    start: Callable[[str], Start]
    """Takes the gateway's address."""
    answers: Callable[[str], tuple[str, ...]]
    """Takes a shell command; returns what the model answers, turn by turn, so that the program runs it twice and ends
    well."""
    session: str = ""
    """Session in the URL, for a program that names none and changes its history; empty: none is needed."""
    agent: str = "gateway"
    """Name of the agent that the gateway sees."""
    outcomes: tuple[str, ...] = ("new_trajectory", "continuation", "continuation")
    """What its requests are, in order, without those beside the conversation."""
    side_calls: int = 0
    """Requests beside the conversation."""
    tools: int = 2
    """Tool calls with results."""
    bounded: tuple[str, ...] = ()
    """Options for a model that never ends well: without them the program would ask it on and on."""
    survives: bool = True
    """Whether it waits for a gateway that is away as long as a restart takes."""
    outcomes_killed: tuple[str, ...] = ()
    """What its requests may be besides, if the gateway is killed in the middle of an answer."""
    more_segments_killed: int = 0
    """Segments that its conversation may have besides, if the gateway is killed."""

    @property
    def segments(self) -> int:
        """Segments of its conversation."""
        return sum(outcome != "continuation" for outcome in self.outcomes)

    @property
    def segments_killed(self) -> int:
        """Most segments, if the gateway is killed in the middle of an answer."""
        return self.segments + self.more_segments_killed


def _tool_call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _claude_code(url: str) -> Start:
    env = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "k",
        "ANTHROPIC_MODEL": "policy",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # it may run as root
    }
    program = str(binary(CLAUDE_CODE))
    return Start((program, "-p", TASK, "--dangerously-skip-permissions"), env)


def codex(url: str, model: str = "policy") -> Start:
    """Codex, told to use ``model``."""
    settings = f"""
model = "{model}"
model_provider = "local"

[model_providers.local]
name = "local"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "LOCAL_KEY"
"""
    program = str(binary("@openai/codex@0.169.0"))
    options = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    return Start((program, *options, TASK), {"LOCAL_KEY": "k"}, {".codex/config.toml": settings})


def _opencode(url: str) -> Start:
    settings = {
        "provider": {
            "local": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{url}/v1", "apiKey": "k"},
                "models": {"policy": {"name": "policy"}},
            }
        },
        "model": "local/policy",
    }
    env = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return Start((str(binary("opencode-ai@1.18.33")), "run", TASK), env, {"work/opencode.json": json.dumps(settings)})


def _mini(url: str) -> Start:
    env = {"MSWEA_CONFIGURED": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    argv = [
        str(programs_of(MINI_SWE_AGENT) / "mini"),
        "-m",
        "openai/policy",
        "-t",
        TASK,
        "--yolo",
        "--exit-immediately",
    ]
    settings = ("cost_tracking=ignore_errors", f"model_kwargs.api_base={url}/v1", "model_kwargs.api_key=k")
    argv += ["-c", "mini", *(part for each in settings for part in ("-c", f"model.{each}"))]
    return Start(tuple(argv), env)


def _smolagents(url: str) -> Start:
    argv = [str(programs_of(SMOLAGENTS) / "smolagent"), TASK, "--model-type", "OpenAIModel", "--model-id", "policy"]
    return Start((*argv, "--api-base", f"{url}/v1", "--api-key", "k", "--imports", "subprocess", "--tools"))


def _twice(name: str, **arguments: str) -> tuple[str, ...]:
    """A call with a sentence before it, one without, and an answer."""
    call = _tool_call(name, **arguments)
    return f"Let me say hello.\n{call}", call, DONE


def _in_python(command: str) -> tuple[str, ...]:
    run = f"<code>\nimport subprocess\nprint(subprocess.getoutput({command!r}))\n</code>"
    return f"Thought: I say hello.\n{run}", f"Thought: Once more.\n{run}", f"<code>\nfinal_answer({DONE!r})\n</code>"


PROGRAMS = (
    Program(
        "claude-code",
        _claude_code,
        lambda command: _twice("Bash", command=command, description="Says hello"),
        agent="claude-code",
    ),
    Program(
        "codex",
        codex,
        lambda command: _twice("exec_command", cmd=command),
        agent="codex",
        outcomes_killed=("edited",),  # it sends the reasoning of a broken answer back
    ),
    Program(
        "opencode",
        _opencode,
        lambda command: _twice("bash", command=command, description="Says hello"),
        agent="opencode",
        side_calls=1,  # the session's title
        # It sends the call of a broken answer back as an aborted one. Once, the next request was edited, too.
        outcomes_killed=("edited",),
        more_segments_killed=2,
    ),
    Program(
        "mini-swe-agent",
        _mini,
        # It ends with a command, whose result the model does not see.
        lambda command: (
            *_twice("bash", command=command)[:2],
            _tool_call("bash", command=f"echo {SUBMIT}; echo {DONE}"),
        ),
        bounded=("-c", "agent.step_limit=3"),
    ),
    Program(
        "smolagents",
        _smolagents,
        _in_python,
        session="smolagents",
        # It sends each answer back with its code once more, as "Calling tools: …".
        outcomes=("new_trajectory", "edited", "edited"),
        tools=0,  # the code is text to the model
        survives=False,  # OpenAI's client tries three times within seconds
    ),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended."""

    status: int
    output: str
    """What it printed, with its errors."""


async def run_program(start: Start, home: Path, limit_s: float) -> Ended:
    """Run a program to its end in an empty ``home``, within ``limit_s`` seconds. Raises ``TimeoutError``."""
    work = home / "work"
    work.mkdir(parents=True)
    for path, text in start.files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb", **OFFLINE, **start.env}
    process = await asyncio.create_subprocess_exec(
        *start.argv,
        cwd=work,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    output = b""
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return Ended(await process.wait(), output.decode(errors="replace"))
