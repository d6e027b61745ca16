"""``headrace schemas``: the JSON Schema of every type on the wire."""

from pathlib import Path

import click

from headrace.deploy.terminal import tell, tell_json


@click.command("schemas")
@click.argument("types", nargs=-1, metavar="[TYPE]...")
@click.option(
    "--write", type=click.Path(file_okay=False, path_type=Path), help="Write one file a type into this folder."
)
def command(types: tuple[str, ...], write: Path | None) -> None:
    """Print the JSON Schemas of all types (or of TYPE), or write them to a folder."""

    from headrace.schemas.jsonschema import json_schemas, write_snapshots

    if write is not None:
        changed = write_snapshots(write)
        tell(f"{len(changed)} of {len(json_schemas())} schemas written to {write}; the others were there already.")
        return
    schemas = json_schemas()
    for name in types:
        if name not in schemas:
            raise click.BadParameter(f"no type {name!r}; the types are:\n  " + "\n  ".join(schemas))
    shown = {name: schemas[name] for name in types or schemas}
    tell_json(shown, indent=1)
