"""``headrace schemas``: the JSON Schema of every record type."""

from pathlib import Path

import click

from headrace.deploy.terminal import print_json, print_line


@click.command("schemas")
@click.argument("types", nargs=-1, metavar="[TYPE]...")
@click.option(
    "--write", type=click.Path(file_okay=False, path_type=Path), help="Write one file per type to this folder."
)
def command(types: tuple[str, ...], write: Path | None) -> None:
    """Print the JSON Schemas of all record types (or of TYPE), or write them to a folder."""

    from headrace.schemas.jsonschema import json_schemas, write_snapshots

    if write is not None:
        changed = write_snapshots(write)
        print_line(f"{len(changed)} of {len(json_schemas())} schemas written to {write}; the others are unchanged.")
        return
    schemas = json_schemas()
    for name in types:
        if name not in schemas:
            raise click.BadParameter(f"no type {name!r}; the types are:\n  " + "\n  ".join(schemas))
    shown = {name: schemas[name] for name in types or schemas}
    print_json(shown, indent=1)
