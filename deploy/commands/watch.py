"""``headrace watch``: the monitors' alerts, acknowledging them, and planted hacks."""

from typing import TYPE_CHECKING

import click

from headrace.deploy.terminal import CommandGroup, print_json, print_line, print_lines

if TYPE_CHECKING:
    from headrace.deploy.watching.episodes import EpisodeStatus
    from headrace.schemas.records.alert import Alert

_BROKER = (
    click.option("--kafka", metavar="HOST:PORT", help="Broker; else HEADRACE_KAFKA, else the stack on --data."),
    click.option("--data", type=click.Path(file_okay=False), help="Data folder of a running stack (HEADRACE_DATA)."),
)


@click.group("watch", cls=CommandGroup)
def command() -> None:
    """Alerts about drift, reward hacks and the system: list them, acknowledge them, try the monitors out.

    \b
      headrace watch list
      headrace watch ack 0f3ebc7e --by ada
      headrace watch accept 0f3ebc7e --by ada
      headrace watch plant search-once
    """


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that are resolved.")
@click.option("--run", metavar="RUN", help="Only of this training run.")
@click.option("--full", is_flag=True, help="Whole ids, all examples, what each means and what was measured.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line: the newest alert of each.")
@_BROKER[0]
@_BROKER[1]
def list_(everything: bool, run: str | None, full: bool, as_json: bool, kafka: str | None, data: str | None) -> None:
    """List alerts of the monitors and of the process oncall, one per line: open ones, or all.

    A line: id, state, monitor or condition, value and the usual one, strength (it alarms from 1 on), since which
    version, run and agent, its runbook (`headrace runbook NAME` says how to find the cause), trajectories that show it.
    """
    from headrace.deploy.watching.alerts import read_episodes
    from headrace.deploy.watching.episodes import explanation, row

    known = read_episodes(_address(kafka, data))
    shown = [each for each in known if (everything or each.is_open) and run in (None, each.newest.run)]
    for each in shown:
        if as_json:
            print_json(each.newest.model_dump(mode="json") | {"acknowledged_by": list(each.acknowledged_by)})
        else:
            print_line(row(each, full=full))
            if full:
                print_lines(explanation(each))
    if not as_json:
        print_line(f"{len(shown)} alert{'' if len(shown) == 1 else 's'}", err=True)


WITHIN_S = 15.0
"""Seconds for which `accept` waits until the monitor has ended the alert."""


def _decided(
    alert: str, by: str, kafka: str | None, data: str | None, *, prefers_open: bool = False
) -> "tuple[str, EpisodeStatus, list[EpisodeStatus]]":
    """Returns the broker's address, the alert about which ``by`` has decided, and all alerts."""
    from headrace.deploy.errors import StackError
    from headrace.deploy.watching.alerts import read_episodes
    from headrace.deploy.watching.episodes import NoEpisode, named

    if not by.strip() or len(by) > 200 or not by.isprintable():
        raise click.UsageError("--by needs a name of 1 to 200 printable characters.")
    bootstrap = _address(kafka, data)
    known = read_episodes(bootstrap)
    try:
        return bootstrap, named(known, alert, prefers_open=prefers_open), known
    except NoEpisode as error:
        raise StackError(f"{error}.") from error


def _name(status: "EpisodeStatus") -> str:
    return f"{status.episode.monitor} ({status.episode.id[:8]})"


@command.command("ack")
@click.argument("alert", metavar="ALERT")
@click.option("--by", required=True, metavar="NAME", help="Who has seen it.")
@click.option("--resume", is_flag=True, help="End this alert's pause of admission, if it has paused its task source.")
@_BROKER[0]
@_BROKER[1]
def ack(alert: str, by: str, resume: bool, kafka: str | None, data: str | None) -> None:
    """Note that somebody has seen an alert: ALERT is its id, or its beginning. The monitor is not silenced.

    An alert of a monitor in `workers.watch_pauses` pauses admission until it is resolved, or until --resume. A task
    source that several alerts pause stays paused until the last of them is: the others are then named.
    """
    from headrace.deploy.errors import StackError
    from headrace.deploy.watching.alerts import acknowledge
    from headrace.deploy.watching.episodes import pausing_besides
    from headrace.schemas.records.alert import AdmissionOrder

    bootstrap, status, known = _decided(alert, by, kafka, data)
    if resume and not status.pauses:
        raise StackError(f"{_name(status)} does not pause admission: leave out --resume.")
    if by in status.acknowledged_by and not resume:
        print_line(f"{status.episode.monitor} was acknowledged by {by} before.")
        return
    acknowledge(bootstrap, status, by, AdmissionOrder.RESUME if resume else AdmissionOrder.NONE)
    done = f"{_name(status)}{'' if status.is_open else ', which is resolved,'} is acknowledged by {by}"
    if not resume:
        print_line(f"{done}.")
    elif others := pausing_besides(status, known):
        print_line(
            f"{done}, and no longer pauses admission. Its task source stays paused by "
            f"{', '.join(map(_name, others))}: --resume ends each of these pauses, too."
        )
    else:
        print_line(f"{done}; admission is resumed.")


@command.command("accept")
@click.argument("alert", metavar="ALERT")
@click.option("--by", required=True, metavar="NAME", help="Who decides it.")
@_BROKER[0]
@_BROKER[1]
def accept(alert: str, by: str, kafka: str | None, data: str | None) -> None:
    """Take what an open alert shows as usual from now on: ALERT is its id, or its beginning. It cannot be taken back.

    The monitor ends the alert, and a pause of admission with it, and forgets what was usual: it judges nothing until
    it has learnt that anew (most need 25 windows; streams/watch/README.md lists all). So first see from all examples
    that it is no hack, and then accept a level that will stay, as of other tasks, or the last alert of a run that has
    ended. One cause may have several alerts: each is accepted by itself.
    """
    from headrace.deploy.errors import StackError
    from headrace.deploy.watching.alerts import accept as write
    from headrace.deploy.watching.alerts import has_ended
    from headrace.deploy.watching.episodes import NotAccepted, accepted_level

    bootstrap, status, _ = _decided(alert, by, kafka, data, prefers_open=True)
    try:
        level = accepted_level(status, by)
    except NotAccepted as error:
        raise StackError(f"{error}.") from error
    write(bootstrap, level)
    if has_ended(bootstrap, level.episode, within_s=WITHIN_S):
        print_line(f"{_name(status)} is accepted by {by}: its alert has ended, and it learns anew what is usual.")
    else:
        print_line(
            f"{_name(status)} is accepted by {by}, but its alert has not ended within {WITHIN_S:g} s: it will when the "
            "process workers, which runs the monitors, has read that. `headrace status` shows whether it runs."
        )


@command.command("monitors")
def monitors() -> None:
    """List the monitors: what an alarm means, which may pause admission, and which are readings that never alarm."""
    from headrace.streams.watch.monitors import NAMES, about, is_reading, may_pause

    for name in (*dict.fromkeys(NAMES), "component:NAME", "against:NAME"):
        role = "reading" if is_reading(name) else "may pause" if may_pause(name) else ""
        print_line(f"{name:20} {role:11}{about(name)}")


@command.command("plant")
@click.argument("name", metavar="NAME")
@click.option("--honest", type=click.IntRange(26, 1000), default=50, show_default=True, help="Honest steps before it.")
@click.option("--steps", type=click.IntRange(1, 1000), default=60, show_default=True, help="Steps with it.")
@click.option(
    "--ramp", type=click.IntRange(1, 1000), default=60, show_default=True, help="Steps until 90 % are hacked."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the simulation.")
@click.option("--live", is_flag=True, help="Send the attempts to a running stack, whose process workers raises alarms.")
@_BROKER[0]
@_BROKER[1]
def plant(
    name: str, honest: int, steps: int, ramp: int, seed: int, live: bool, kafka: str | None, data: str | None
) -> None:
    """Plant the hack or drift NAME into simulated rollouts, and print which monitors alarm, and when.

    Steps are counted from the first hacked one. NAME `list` prints hacks and drifts, `nothing` plants none. Slow ones,
    such as forgetting, may need --steps 80 to alarm.

    With --live the attempts are sent as events and feedback to a running stack: it assembles, scores, groups and
    watches them, and its pages show their text. They have a run of their own and no consent to training, so nothing is
    trained on them. Each step waits until the one before is observed; the command can be interrupted at any time.

    \b
    All hacks show live; these parts do not:
      unannealed-lambda   only if the stack was started with
                          --set 'workers.watch_anneals={"planted-unannealed@1": {"parallel": 400}}';
                          its weight stops to decline at version 50, whatever --honest says
      too-long            needs a trainer that rejects; so does the monitor rejection_reason of broken-calls
      unjudged-if-long    needs a reward that waits for feedback; so does the monitor coverage of leaving-early
    """
    from headrace.streams.watch.planted.drifts import PLANTED

    if name == "list":
        for hack in PLANTED.values():
            print_line(f"{hack.name:24} {hack.about}")
        return
    if name != "nothing" and name not in PLANTED:
        raise click.UsageError(f"No hack {name!r}: `headrace watch plant list` prints them.")
    from headrace.deploy.watching.plant import Plan, alarms, line, planted_steps

    plan, found = Plan(PLANTED.get(name), honest, ramp, steps, seed), 0

    def alarmed(step: int, alert: "Alert") -> None:
        nonlocal found
        found += 1
        print_line(line(step, plan.share(step), alert))

    print_line(" step share  alarms")
    if live:
        from headrace.deploy.watching.live_plant import plant_live

        sent = plant_live(_address(kafka, data), plan, alarmed)
    else:
        for each, alerts in alarms(planted_steps(plan, 0)):
            for alert in alerts:
                alarmed(each.step, alert)
    if not found:
        print_line("No monitor alarms.")
    if live:
        print_line(
            f"{sent.attempts} attempts in {sent.events} events: `headrace watch list --run {sent.run}`, and the "
            f"dashboard's page /watch?run={sent.run}, show what the monitors say."
        )


def _address(kafka: str | None, data: str | None) -> str:
    from headrace.deploy.stack.state import address_of

    return address_of("kafka", kafka, data)
