"""``headrace settings``: every setting, what it is now and what it means."""

import click


@click.command("settings")
@click.option("--data", type=click.Path(file_okay=False), help="As other commands take it (HEADRACE_DATA).")
@click.option("--json", "as_json", is_flag=True, help="The values as JSON.")
def command(data: str | None, as_json: bool) -> None:
    """Print every setting of stack and workers: variable, value, meaning."""
    import json

    from headrace.deploy.settings import PREFIX, Settings, load_settings

    values = load_settings(data=data).model_dump(mode="json")
    if as_json:
        click.echo(json.dumps(values, indent=1))
        return
    for name, field in Settings.model_fields.items():
        value = values[name]
        click.echo(f"{PREFIX}{name.upper()}={'' if value is None else value}")
        click.echo(f"    {' '.join((field.description or '').split())}")
