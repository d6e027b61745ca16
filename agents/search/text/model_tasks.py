"""Tasks that a language model proposes, under the same checks as those from syntax trees.

    generated = await tasks_by_model(explorer, corpus, sha256, count=100, calls=400, seed=0)

One call explores a document. Every candidate that is verified is extended by one hop, by a second call with documents
about its answer; if the longer question fails, the shorter one stays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from headrace.agents.search.text.candidates import Candidate
from headrace.agents.search.text.generate import Generated, Rejected, with_distractors
from headrace.agents.search.text.model_explorer import ModelExplorer
from headrace.agents.search.text.tasks import TextTask, task_of
from headrace.agents.search.text.verify import Corpus, normalised, verify

ABOUT_ANSWER = 3
"""Most documents about the present answer that the model is shown for one more hop."""


@dataclass(frozen=True, slots=True)
class GeneratedByModel(Generated):
    """What was made of a model's proposals."""

    calls: int
    """Calls of the model."""
    malformed: int
    """Proposals that were not of the right form."""


async def tasks_by_model(
    explorer: ModelExplorer,
    corpus: Corpus,
    documents: str,
    *,
    count: int,
    calls: int,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> GeneratedByModel:
    """Return at most ``count`` tasks of at most ``calls`` calls of ``explorer``.

    ``documents``: SHA-256 of the corpus. Raises :class:`RetrievalError` if the endpoint fails.
    """
    order = list(corpus.documents.values())
    Random(seed).shuffle(order)
    tasks: dict[str, TextTask] = {}
    rejected: list[Rejected] = []
    made = malformed = dropped = 0

    def is_sound(candidate: Candidate) -> bool:
        if failures := verify(candidate, corpus):
            rejected.append(Rejected(candidate, failures))
        return not failures

    for document in order:
        if made >= calls or len(tasks) >= count:
            break
        proposed = await explorer.explore([document])
        made += 1
        malformed += proposed.malformed
        for candidate in filter(is_sound, proposed.candidates):
            kept = candidate
            evidence = {hop.doc_id for hop in candidate.hops}
            found = dict.fromkeys(each.doc_id for each in corpus.statements_with(normalised(candidate.answer)))
            related = [corpus.documents[doc_id] for doc_id in found if doc_id not in evidence][:ABOUT_ANSWER]
            if related and made < calls:
                longer = await explorer.extend(candidate, related)
                made += 1
                if longer is not None and is_sound(longer):
                    kept = longer
            kept, unfit = with_distractors(kept, corpus)
            dropped += unfit
            if len(tasks) < count:
                tasks.setdefault(kept.question, task_of(kept, corpus, documents))
        progress(f"{len(tasks):,} tasks, {made:,} calls, {len(rejected):,} proposals rejected")
    return GeneratedByModel(tuple(tasks.values()), tuple(rejected), dropped, made, malformed)
