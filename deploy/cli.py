"""The ``headrace`` command. Each subcommand is a module of ``deploy/commands`` that is imported when it is used.

At module level command modules import only click and other light modules, so that ``headrace --help`` is fast.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import requires
from pathlib import Path

import click

from headrace.deploy.errors import StackError, path_problem
from headrace.deploy.terminal import CommandGroup, error_text

_COMMANDS = Path(__file__).with_name("commands")
"""Longest first sentence of a command, in characters; click shortens others."""

SECTIONS: dict[str, tuple[str, ...]] = {
    "The stack on this machine": ("demo", "up", "status", "down", "settings", "sandbox", "share", "grafana"),
    "Data": (
        "import",
        "ledger",
        "tail",
        "dead-letters",
        "topics",
        "topology",
        "tables",
        "query",
        "schemas",
        "asyncapi",
    ),
    "Rollouts": ("environment", "fork"),
    "Rewards": ("reward", "replay", "diff", "watch"),
    "On call": ("runbook",),
    "Models": ("train", "keys", "metrics", "base-model", "deletion-tasks", "sft", "rft"),
    "Search over real text": ("corpus", "tasks", "index"),
    "Provenance": ("show", "lineage", "rebuild"),
    "Single processes (Kubernetes, systemd)": ("worker",),
}
"""Sections of the help; a command that is in no section appears under "More"."""


class LazyGroup(CommandGroup):
    """Finds command ``x-y`` in the module ``commands/x_y.py`` (``commands/x_.py`` where x is a Python keyword)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all commands."""
        return sorted(file.stem.rstrip("_").replace("_", "-") for file in _COMMANDS.glob("[!_]*.py"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return its ``command``."""
        stem = cmd_name.replace("-", "_")
        for candidate in (stem, stem + "_"):
            if (_COMMANDS / f"{candidate}.py").is_file():
                found: click.Command = import_module(f"headrace.deploy.commands.{candidate}").command
                return found
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for an unknown name the error suggests another one."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}. {self._instead(ctx, args[0])}")
        return super().resolve_command(ctx, args)

    def _instead(self, ctx: click.Context, name: str) -> str:
        """Returns a sentence on what ``name``, which is no command, may be meant for."""
        from headrace.deploy.processes.registry import workers

        if name in workers():
            return (
                f"It is a process: `headrace worker {name}` runs it; those of the stack are started by `headrace up`."
            )
        near = get_close_matches(name, self.list_commands(ctx), n=1)
        return f"Did you mean {near[0]}?" if near else "`headrace --help` lists them."

    def sections(self, ctx: click.Context) -> Mapping[str, Sequence[str]]:
        """Return the names of the commands under the headings of their sections."""
        names = self.list_commands(ctx)
        placed = {name for section in SECTIONS.values() for name in section}
        return SECTIONS | {"More": tuple(name for name in names if name not in placed)}

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; known errors are shown as a sentence without a traceback."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = error_text(error.message)
            raise
        except StackError as error:
            raise click.ClickException(error_text(error)) from error
        except OSError as error:
            if (problem := path_problem(error)) is None:
                raise
            raise click.ClickException(error_text(problem)) from error
        except ModuleNotFoundError as error:
            if (extra := extra_with(error.name or "")) is None:
                raise
            raise click.ClickException(
                f"{error.name} is not installed; it is part of headrace's extra {extra}: install headrace[{extra}]."
            ) from error


def extra_with(module: str) -> str | None:
    """Returns the extra of headrace that installs ``module``, if the distribution has the module's name."""
    wanted = module.partition(".")[0].replace("_", "-")
    if wanted == "headrace":  # a module of its own is missing: no extra brings it
        return None
    for requirement in requires("headrace") or ():
        found = re.match(r"(?P<name>[A-Za-z0-9-]+).*extra == ['\"](?P<extra>[a-z-]+)['\"]", requirement)
        if found and (found["name"] == wanted or found["name"].startswith(f"{wanted}-")):
            return found["extra"]
    return None


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="""\b
Examples:
  headrace demo                                    watch an agent learn, from events to new weights and back
  headrace demo --through-gateway                  the agent is an ordinary program on OpenAI's client
  headrace up --without vllm,trainer,follower      Kafka, streams, ClickHouse and dashboard only
  headrace import runs.jsonl                       convert recorded runs to events
  headrace status --json                           the addresses and states of all parts
""",
)
@click.version_option(package_name="headrace")
def cli() -> None:
    """Train LLM agents from the events they emit in production.

    Agents write events to Kafka. Stream processors turn them into rewards and training groups. A trainer learns from
    the groups and publishes weights, which the inference engine loads while it serves.
    """


def main() -> None:
    """Entry point."""
    cli(prog_name="headrace")


if __name__ == "__main__":
    main()
