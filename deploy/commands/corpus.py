"""``headrace corpus``: make a corpus of real text from the documentation of the installed Python."""

import json
from pathlib import Path

import click

from headrace.deploy.terminal import print_line


@click.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder to write to.")
@click.option("--documents", type=click.IntRange(1), default=3_000, show_default=True, help="Most documents.")
def command(out: Path, documents: int) -> None:
    """Make a corpus from the standard library's docstrings and the language reference of the Python that runs this.

    Nothing is downloaded and nothing is imported: the sources are read as text. The texts are under Python's licence
    (PSF), which corpus.json notes. For a given version of Python the result is the same every time.

    Afterwards: `headrace index --corpus DIR` and `headrace tasks --corpus DIR --out FILE`.
    """
    from headrace.agents.retrieval.documents import write_documents
    from headrace.agents.search.text.corpus import ABOUT, about, corpus_of, write_facts
    from headrace.agents.search.text.installation import sources, stdlib, topics
    from headrace.deploy.new_folder import new_folder

    found = list(sources(stdlib()))
    with new_folder(out) as folder:
        with click.progressbar(found, label=f"reading {len(found)} modules") as bar:
            text = corpus_of(bar, topics(), documents, print_line)
        sha256 = write_documents(text.documents, folder)
        write_facts(text.facts, folder)
        (folder / ABOUT).write_text(json.dumps(about(text, sha256), indent=1) + "\n")
    print_line(f"{out}: sha256 {sha256[:16]}…")
