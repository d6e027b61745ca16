"""``headrace share``: a link that shows one run in the dashboard, read-only, until it expires."""

import click

from headrace.deploy.terminal import print_line, print_lines


@click.command("share")
@click.argument("run", required=False)
@click.option("--days", type=click.IntRange(1, 90), default=7, show_default=True, help="Life of the link.")
@click.option(
    "--address",
    metavar="URL",
    help="Address at which others reach the dashboard; default: that of the stack on --data.",
)
@click.option("--revoke-all", is_flag=True, help="Replace the key: every link made so far ends at once.")
@click.option("--data", type=click.Path(file_okay=False), help="Data folder of the dashboard (HEADRACE_DATA).")
def command(run: str | None, days: int, address: str | None, revoke_all: bool, data: str | None) -> None:
    """Print a link that shows the run RUN, and nothing else, to everybody who has it.

    The link shows the overview and the trainer's page of that run, without alerts and without what is measured of all
    runs. It is signed with a key in the data folder (DATA/keys/share.key). The dashboard itself listens on loopback
    only: to show a link to others, have a proxy pass /shared/, /static/ and /api/metrics to it, and no other path.

    If ClickHouse answers and knows no such run, a warning names those that exist: a link may be made before its run
    begins.

    \b
      headrace share demo
      headrace share demo --days 30 --address https://headrace.example.org
      headrace share --revoke-all
    """
    import time

    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.dashboard.selection import MAX_TEXT
    from headrace.deploy.dashboard.sharing import PREFIX, Share, key_file, make_key, sign
    from headrace.deploy.errors import StackError
    from headrace.deploy.stack.state import address_of
    from headrace.schemas.http_address import http_address

    if (run is None) != revoke_all:
        raise click.UsageError("Name a run, or --revoke-all.")
    file = key_file(load_settings(data=data).data)
    try:
        key = make_key(file, replace=revoke_all)
    except OSError as error:
        raise StackError(f"The key {file} cannot be written: {error.strerror}.") from error
    if run is None:
        print_line("All links have ended.")
        return
    if not 0 < len(run) <= MAX_TEXT:
        raise click.UsageError(f"A run's name has 1 to {MAX_TEXT} characters.")
    if address is not None:
        try:
            http_address(address)
        except ValueError as error:
            raise click.UsageError(f"--address is {address!r}, {error}") from error
    base = (address or address_of("dashboard", None, data)).rstrip("/")
    expires = int(time.time()) + days * 86_400
    print_lines([f"{base}{PREFIX}{sign(Share(run, expires), key)}/"])
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(expires))
    print_line(f"shows the run {run} until {day}; `headrace share --revoke-all` ends all links", err=True)
    if problem := _unknown(run, data):
        print_line(f"warning: {problem} The link shows it once it has begun.", err=True)


def _unknown(run: str, data: str | None) -> str | None:
    """Returns that ClickHouse knows no run ``run``; ``None`` if it does, or cannot be asked."""
    from headrace.deploy.configuration.settings import load_settings
    from headrace.deploy.errors import StackError
    from headrace.deploy.stack.state import address_of

    try:
        address = address_of("clickhouse", None, data)
    except StackError:
        return None
    from clickhouse_connect.driver.exceptions import ClickHouseError

    from headrace.deploy.dashboard.runs import runs_besides, unknown_run
    from headrace.streams.clickhouse.database import open_client

    settings = load_settings(data=data)
    secrets = settings.clickhouse_secrets if settings.clickhouse else settings.secrets_of_embedded
    try:
        client = open_client(address, secrets=secrets, connect_timeout_s=2, timeout_s=10)
        try:
            others = runs_besides(client, run)
        finally:
            client.close()
    except (ClickHouseError, OSError, ValueError):
        return None
    return None if others is None else unknown_run(run, others, remedy="")
