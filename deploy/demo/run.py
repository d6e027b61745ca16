"""Runs the demo on a stack of its own: empties the folder, starts the stack, trains, prints the summary."""

import asyncio
import shutil
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from headrace.deploy.configuration.settings import Settings, load_settings
from headrace.deploy.demo.circle import DemoPlan, Phases, run_circle
from headrace.deploy.demo.memory import peak_memory
from headrace.deploy.demo.plot import draw
from headrace.deploy.demo.summary import Summary, render
from headrace.deploy.errors import StackError
from headrace.deploy.stack.foreground import print_change
from headrace.deploy.stack.stack import running_stack
from headrace.deploy.stack.state import is_locked
from headrace.deploy.system.data_folder import command_on, make_folder
from headrace.deploy.terminal import print_line, print_text

_INTERRUPTED = 130
_MARK = "made-by-headrace-demo"
"""A file that marks a folder as created by the demo; only such a folder is emptied."""


def run_demo(plan: DemoPlan, *, data: str | None, json_path: Path | None, plot_path: Path | None, keep: bool) -> None:
    """Run ``plan`` on a fresh stack; writes the picture and, with ``json_path``, the JSON.

    Raises :class:`StackError` if the stack does not start or the training run fails.
    """
    settings = demo_settings(plan, data)
    fresh_folder(settings.data)
    plot = (plot_path or settings.data / "reward.png").absolute()
    try:
        asyncio.run(_run(settings, plan, plot, json_path, keep))
    except (asyncio.CancelledError, KeyboardInterrupt):
        print_line("Stopped.", err=True)
        sys.exit(_INTERRUPTED)


def demo_settings(plan: DemoPlan, data: str | None) -> Settings:
    """Returns the user's settings with the demo's folder, run and options."""
    settings = load_settings(data=data)
    own = {"data": settings.data / "demo", "run": "demo", "options": plan.options()}
    if "model_dir" not in settings.model_fields_set:
        own["model_dir"] = plan.system.base
    return settings.model_copy(update=own)


def fresh_folder(folder: Path) -> None:
    """Empty ``folder`` if an earlier demo created it; raises :class:`StackError` otherwise, or if a demo runs on it."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARK).exists():
            raise StackError(f"{folder} was not created by a demo: move it away, or choose another folder with --data.")
        if is_locked(folder):
            raise StackError(f"A demo is running on {folder}: stop it, or choose another folder with --data.")
        shutil.rmtree(folder)
    make_folder(folder)
    (folder / _MARK).touch()


async def _run(settings: Settings, plan: DemoPlan, plot: Path, json_path: Path | None, keep: bool) -> None:
    main = asyncio.current_task()
    assert main is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    phases = Phases()
    print_line(f"Starting headrace on {settings.data}")
    async with AsyncExitStack() as exits:
        peak = await exits.enter_async_context(peak_memory())
        async with phases.phase("start"):
            stack = await exits.enter_async_context(
                running_stack(settings, on_progress=print_change, on_note=print_line)
            )
        print_line(f"Watch it at {stack.addresses['dashboard']}")
        summary = await run_circle(stack, plan, phases, peak, plot, print_line)
        _show(summary, plot, json_path)
        if keep:
            status = command_on("status", settings.data)
            print_line(
                f"The stack is still up: Ctrl-C stops it; `{status}` shows it from another shell. Use the same --data "
                "with other commands."
            )
            await asyncio.Event().wait()


def _show(summary: Summary, plot: Path, json_path: Path | None) -> None:
    plot.parent.mkdir(parents=True, exist_ok=True)
    draw(summary, plot)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(summary.model_dump_json(indent=1) + "\n")
    print_text(render(summary) + "\n")
