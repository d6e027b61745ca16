"""``headrace status``: the running stack's parts, their addresses and their states."""

import sys

import click

from headrace.deploy.terminal import print_json, print_line


@click.command("status")
@click.option("--data", type=click.Path(file_okay=False), help="Folder of the stack (HEADRACE_DATA).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: all addresses and the state of every part.")
def command(data: str | None, as_json: bool) -> None:
    """Show the running stack: addresses, states, restarts, logs. Exit status 1 unless every part is ready."""

    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.stack.state import State, read_state
    from headrace.deploy.system.data_folder import full_disk

    folder = load_settings(data=data).data
    state = read_state(folder)
    if (full := full_disk(folder)) is not None:
        print_line(f"{full}; the parts that stopped because of it are then restarted.", err=True)
    if as_json:
        print_json(state.as_json(), indent=1)
    else:
        print_line(f"Stack on {state.data}, run {state.run}, process {state.pid}")
        print_line(f"  {'part':<11} {'state':<10} {'start':>7}  {'process':>7}  address")
        for name, part in state.parts.items():
            took = "" if part.ready_s is None else f"{part.ready_s:5.1f} s"
            deaths = f"   restarted {part.restarts}×" if part.restarts else ""
            pid, where = part.pid or "", part.address or part.metrics or ""
            print_line(f"  {name:<11} {part.state:<10} {took:>7}  {pid!s:>7}  {where}{deaths}".rstrip())
    if any(part.state not in {State.READY, State.EXTERNAL} for part in state.parts.values()):
        sys.exit(1)
