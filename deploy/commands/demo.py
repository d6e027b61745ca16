"""``headrace demo``: the whole training loop in one command."""

import click

from headrace.deploy.demo.systems import NAMES, system_named


@click.command("demo")
@click.argument("system", type=click.Choice(NAMES), default=NAMES[0], metavar=f"[{'|'.join(NAMES)}]")
@click.option(
    "--seed", type=click.IntRange(0, 997), default=0, show_default=True, help="Seed of tasks, engine, trainer."
)
@click.option("--steps", type=click.IntRange(min=1), help="Optimiser steps; default: the system's (quick: 60).")
@click.option("--heldout", type=click.IntRange(min=1), help="Held-out tasks; default: the system's (quick: 256).")
@click.option("--arm", metavar="NAME", help="A variant of the system, to be compared with others at the same seed.")
@click.option("--control", is_flag=True, help="Shuffle advantages inside their groups; nothing should be learnt then.")
@click.option(
    "--through-gateway",
    is_flag=True,
    help="The agent is an ordinary program on OpenAI's client; the gateway records its calls with exact tokens.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write the summary to this JSON file.")
@click.option("--plot", "plot_path", type=click.Path(dir_okay=False), help="Write the reward curve to this PNG file.")
@click.option(
    "--sandboxes",
    type=click.Path(file_okay=False),
    help="Keep a snapshot of the agent's sandbox after every turn in this folder, for `headrace fork` (coder).",
)
@click.option("--keep", is_flag=True, help="Keep the stack and the dashboard running at the end, until Ctrl-C.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder; the demo empties and uses DIR/demo.")
def command(
    system: str,
    seed: int,
    steps: int | None,
    heldout: int | None,
    arm: str | None,
    control: bool,
    through_gateway: bool,
    json_path: str | None,
    plot_path: str | None,
    sandboxes: str | None,
    keep: bool,
    data: str | None,
) -> None:
    """Watch an agent learn, from its events to new weights and back.

    A small search agent works on generated tasks. Its events flow through Kafka and are scored and grouped. The trainer
    learns from the groups and publishes weights, which vLLM swaps in while the agent keeps working. The agent tries the
    same held-out tasks before and after training. The demo takes some minutes and ends with a summary and a picture.

    SYSTEM is what learns:

    \b
      quick     (default) the search agent under a roomy budget, in under five minutes
      search    the search agent, after Context-1, under a budget that it meets only by pruning
      coder     a coder in sandboxes that summarises its context, after Composer
      swarm     an orchestrator of sub-agents, after Kimi's Agent Swarm

    With --through-gateway the agent of `quick` is a program without any of headrace's code
    (agents/search/openai_program.py). The summary then counts the calls whose tokens differ from those that were
    sampled: there should be none.
    """
    from importlib.util import find_spec
    from pathlib import Path

    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.errors import StackError
    from headrace.deploy.processes.registry import stack_processes
    from headrace.deploy.stack.model_packages import ensure_packages

    ensure_packages(stack_processes(), load_settings(data=data), without=())

    # Only now, because these modules import some of the packages.
    from headrace.deploy.demo.circle import plan_of
    from headrace.deploy.demo.run import run_demo

    chosen = system_named(system)
    plan = plan_of(
        chosen,
        arm,
        seed=seed,
        steps=steps,
        heldout_tasks=heldout,
        control=control,
        through_gateway=through_gateway,
        sandboxes=Path(sandboxes).absolute() if sandboxes else None,
    )
    if through_gateway and chosen.program is not None and find_spec(chosen.program.requires) is None:
        from headrace.agents.adapters.runs import install_command

        library = chosen.program.requires
        raise StackError(f"--through-gateway runs a program that imports {library}: {install_command(library)}")
    run_demo(
        plan,
        data=data,
        json_path=Path(json_path) if json_path else None,
        plot_path=Path(plot_path) if plot_path else None,
        keep=keep,
    )
