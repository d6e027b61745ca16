"""Search over one corpus: BM25 and a ranking by shared trigrams, combined by reciprocal rank fusion.

The second ranking takes the place of a dense retriever in a full harness: it depends on spelling and not on word
frequencies, so the rankings differ and the fusion matters. The search is deterministic; ties go to the lower chunk id.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache

from headrace.agents.retrieval.fusion import reciprocal_rank_fusion
from headrace.agents.search.corpus import Chunk, Corpus

BM25_K1 = 1.2
BM25_B = 0.75


class Index:
    """Search index of a corpus. Immutable after construction, so attempts at the same task share it."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._counts = {chunk.chunk_id: Counter(chunk.triple.words) for chunk in corpus.chunks}
        self._lengths = {chunk_id: counts.total() for chunk_id, counts in self._counts.items()}
        self._mean_length = sum(self._lengths.values()) / max(len(self._lengths), 1)
        frequencies = Counter(word for counts in self._counts.values() for word in counts)
        total = len(self._counts)
        # The +1 inside the logarithm keeps the score of words that occur in most chunks above zero.
        self._idf = {word: math.log(1 + (total - n + 0.5) / (n + 0.5)) for word, n in frequencies.items()}
        self._postings: dict[str, list[str]] = {}
        for chunk_id, counts in self._counts.items():
            for word in counts:
                self._postings.setdefault(word, []).append(chunk_id)
        self._trigrams = {chunk.chunk_id: _trigrams(chunk.triple.words) for chunk in corpus.chunks}

    def search(self, query: Sequence[str], exclude: Collection[str] = ()) -> list[Chunk]:
        """Return chunks by fused rank, best first, without those in ``exclude``; none if nothing matches."""
        fused = reciprocal_rank_fusion([self._bm25(query), self._overlap(query)])
        return [self._corpus.by_id[chunk_id] for chunk_id in fused if chunk_id not in exclude]

    def grep(self, pattern: str) -> list[Chunk]:
        """Return the chunks that contain the word ``pattern``, by chunk id."""
        return [chunk for chunk in self._corpus.chunks if pattern in chunk.triple.words]

    def _bm25(self, query: Sequence[str]) -> list[str]:
        scores: dict[str, float] = {}
        for word in query:
            for chunk_id in self._postings.get(word, ()):
                frequency = self._counts[chunk_id][word]
                norm = BM25_K1 * (1 - BM25_B + BM25_B * self._lengths[chunk_id] / self._mean_length)
                gain = self._idf[word] * frequency * (BM25_K1 + 1) / (frequency + norm)
                scores[chunk_id] = scores.get(chunk_id, 0.0) + gain
        return sorted(scores, key=lambda chunk_id: (-scores[chunk_id], chunk_id))

    def _overlap(self, query: Sequence[str]) -> list[str]:
        wanted = _trigrams(query)
        scores = {
            chunk_id: len(wanted & trigrams) / math.sqrt(len(wanted) * len(trigrams))
            for chunk_id, trigrams in self._trigrams.items()
            if wanted & trigrams
        }
        return sorted(scores, key=lambda chunk_id: (-scores[chunk_id], chunk_id))


def _trigrams(words: Sequence[str]) -> frozenset[str]:
    """Return the trigrams of the individual words, each padded with two spaces on both sides."""
    return frozenset().union(*map(_word_trigrams, words))


@lru_cache(maxsize=1024)
def _word_trigrams(word: str) -> frozenset[str]:
    padded = f"  {word}  "
    return frozenset(padded[start : start + 3] for start in range(len(padded) - 2))
