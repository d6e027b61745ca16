"""``headrace runbook``: what an alert means, and how to find its cause in five minutes."""

import click

from headrace.deploy.terminal import print_line, print_text


@click.command("runbook")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Print the runbook NAME, which an alert names, or the list of all.

    \b
      headrace runbook lag
    """
    from headrace.deploy.oncall.runbook import NoRunbook, runbook, titles

    if name is None:
        for each, title in titles().items():
            print_line(f"{each:20} {title}")
        return
    try:
        print_text(runbook(name))
    except NoRunbook as error:
        raise click.UsageError(str(error)) from error
