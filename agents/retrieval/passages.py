"""What is searched: documents and the chunks that they are cut into.

    Document("d0412", "shutil.copyfileobj", "shutil.copyfileobj(fsrc, fdst, length=0)\\n\\ncopy data from …")
    Chunk("d0412-1", "d0412", "shutil.copyfileobj", "shutil.copyfileobj(fsrc, fdst, length=0)\\n\\ncopy data from …")

A chunk is the unit that tools return and that a policy prunes. Its text is a piece of its document's text.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

CHUNK_WORDS = 120
"""Most words of a chunk, unless a single line has more."""

CHARACTERS_PER_TOKEN = 4.0
"""Used where no tokenizer counts. A harness that knows the engine's own counts replaces it by what it measures."""

TokenCount = Callable[[str], int]
"""Number of tokens of a text."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text with a title."""

    doc_id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document."""

    chunk_id: str
    doc_id: str
    title: str
    """Title of the document."""
    text: str

    @property
    def searched(self) -> str:
        """What indexes read: the title, then the text."""
        return f"{self.title}\n{self.text}"

    @property
    def shown(self) -> str:
        """What a model reads: ``[d0412-1] shutil.copyfileobj``, then the text."""
        return f"[{self.chunk_id}] {self.title}\n{self.text}"


@dataclass(frozen=True)
class Passages:
    """The chunks of a corpus, in the order of their documents."""

    chunks: tuple[Chunk, ...]
    by_id: Mapping[str, Chunk] = field(init=False, repr=False, compare=False)
    by_document: Mapping[str, tuple[Chunk, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_id = {chunk.chunk_id: chunk for chunk in self.chunks}
        if len(by_id) != len(self.chunks):
            raise ValueError("chunk ids of a corpus must be distinct: two documents have the same id")
        documents: dict[str, list[Chunk]] = {}
        for chunk in self.chunks:
            documents.setdefault(chunk.doc_id, []).append(chunk)
        object.__setattr__(self, "by_id", by_id)
        object.__setattr__(self, "by_document", {doc_id: tuple(chunks) for doc_id, chunks in documents.items()})


def estimated_tokens(text: str, characters_per_token: float = CHARACTERS_PER_TOKEN) -> int:
    """Return ⌈characters / ``characters_per_token``⌉, an estimate of the tokens of ``text``."""
    return -int(-len(text) // characters_per_token)


def split_into_chunks(documents: Iterable[Document], words: int = CHUNK_WORDS) -> Passages:
    """Cut ``documents`` between paragraphs, and paragraphs that are longer than ``words`` between lines."""
    return Passages(
        tuple(
            Chunk(f"{document.doc_id}-{number}", document.doc_id, document.title, text)
            for document in documents
            for number, text in enumerate(_pieces(document.text, words), start=1)
        )
    )


def _pieces(text: str, words: int) -> Iterator[str]:
    """Yield pieces of at most ``words`` words; together they have every line that is not blank."""
    piece: list[str] = []
    size = 0
    for block in _blocks(text, words):
        length = len(block.split())
        if piece and size + length > words:
            yield "\n\n".join(piece)
            piece, size = [], 0
        piece.append(block)
        size += length
    if piece:
        yield "\n\n".join(piece)


def _blocks(text: str, words: int) -> Iterator[str]:
    for paragraph in paragraphs(text):
        lines: list[str] = []
        size = 0
        for line in paragraph.splitlines():
            length = len(line.split())
            if lines and size + length > words:
                yield "\n".join(lines)
                lines, size = [], 0
            lines.append(line)
            size += length
        yield "\n".join(lines)


def paragraphs(text: str) -> list[str]:
    """Return the runs of lines between blank lines."""
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return ["\n".join(lines) for lines in found if lines]


def within(chunks: Sequence[Chunk], budget: int, tokens_of: TokenCount) -> list[Chunk]:
    """Return the first of ``chunks`` that fit ``budget`` tokens as they are shown; only whole chunks."""
    fitting: list[Chunk] = []
    for chunk in chunks:
        budget -= tokens_of(chunk.shown)
        if budget < 0:
            break
        fitting.append(chunk)
    return fitting
