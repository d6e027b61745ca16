"""A small corpus for the tests of retrieval: five documents, with chunk ids like ``copy-1``."""

from headrace.agents.retrieval.dense import ExactStore
from headrace.agents.retrieval.lexical import Lexical
from headrace.agents.retrieval.lsa import fit_lsa
from headrace.agents.retrieval.passages import Document, split_into_chunks
from headrace.agents.retrieval.rerankers import Reranker
from headrace.agents.retrieval.retriever import Retriever

DOCUMENTS = (
    Document(
        "copy", "shutil.copyfileobj", "shutil.copyfileobj(fsrc, fdst, length=0)\n\ncopy data between file objects"
    ),
    Document(
        "move", "shutil.move", "shutil.move(src, dst)\n\nmove a file or folder; may copy data, then remove the file"
    ),
    Document("tree", "shutil.rmtree", "shutil.rmtree(path)\n\nremove a folder with every file in it"),
    Document(
        "serve", "http.server.HTTPServer", "class http.server.HTTPServer(socketserver.TCPServer)\n\nserve requests"
    ),
    Document(
        "tcp", "socketserver.TCPServer", "socketserver.TCPServer.request_queue_size = 5\n\nserve requests over TCP"
    ),
)
PASSAGES = split_into_chunks(DOCUMENTS)


def retriever(reranker: Reranker | None = None, *, is_dense: bool = True) -> Retriever:
    """A retriever of the documents, with their LSA unless ``is_dense`` is false."""
    lexical = Lexical.of(PASSAGES)
    if not is_dense:
        return Retriever(PASSAGES, lexical, None, None, reranker)
    texts = [chunk.searched for chunk in PASSAGES.chunks]
    lsa = fit_lsa(texts, dimensions=4)
    return Retriever(PASSAGES, lexical, lsa, ExactStore(lexical.chunk_ids, lsa.vectors(texts)), reranker)
