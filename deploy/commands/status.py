"""``headrace status``: what runs, where it listens, how it is."""

import sys

import click

from headrace.deploy.terminal import tell, tell_json


@click.command("status")
@click.option("--data", type=click.Path(file_okay=False), help="Folder of the stack (HEADRACE_DATA).")
@click.option("--json", "as_json", is_flag=True, help="As JSON: every address and every part's state.")
def command(data: str | None, as_json: bool) -> None:
    """Show the running stack: addresses, states, restarts, logs. Status 1 unless every part serves."""

    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.stack.state import State, read_state
    from headrace.deploy.system.data_folder import full_disk

    folder = load_settings(data=data).data
    state = read_state(folder)
    if (full := full_disk(folder)) is not None:
        tell(f"{full}; what ended because of it is started again then.", err=True)
    if as_json:
        tell_json(state.as_json(), indent=1)
    else:
        tell(f"Stack on {state.data}, run {state.run}, process {state.pid}")
        tell(f"  {'part':<11} {'state':<10} {'start':>7}  {'process':>7}  address")
        for name, part in state.parts.items():
            took = "" if part.ready_s is None else f"{part.ready_s:5.1f} s"
            deaths = f"   restarted {part.restarts}×" if part.restarts else ""
            pid, where = part.pid or "", part.address or part.metrics or ""
            tell(f"  {name:<11} {part.state:<10} {took:>7}  {pid!s:>7}  {where}{deaths}".rstrip())
    if any(part.state not in {State.READY, State.EXTERNAL} for part in state.parts.values()):
        sys.exit(1)
