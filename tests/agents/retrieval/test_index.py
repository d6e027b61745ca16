"""An index on disk gives the same search again, and does not fit other documents or another embedder."""

from pathlib import Path
from typing import Any

import pytest

from headrace.agents.retrieval.documents import NoCorpus, read_documents, write_documents
from headrace.agents.retrieval.embedders import EndpointEmbedder
from headrace.agents.retrieval.index import NoIndex, RetrievalSettings, build_index, open_retriever
from headrace.agents.retrieval.learnt_reranker import FEATURES, fit_reranker
from headrace.agents.retrieval.rerankers import EndpointReranker
from tests.agents.retrieval.endpoint_server import endpoint
from tests.agents.retrieval.shelf import DOCUMENTS
from tests.agents.retrieval.test_learnt_reranker import examples


def corpus(folder: Path) -> Path:
    write_documents(DOCUMENTS, folder)
    return folder


def embeddings(path: str, body: Any) -> Any:
    """Vectors by the number of two letters in a text."""
    return {
        "data": [
            {"index": row, "embedding": [text.count("s") + 1, text.count("t")]}
            for row, text in enumerate(body["input"])
        ]
    }


def test_documents_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_documents(corpus(tmp_path)) == DOCUMENTS


def test_a_folder_without_documents_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(NoCorpus, match="headrace corpus"):
        read_documents(tmp_path)


def test_a_line_that_is_no_document_is_named(tmp_path: Path) -> None:
    path = corpus(tmp_path) / "documents.jsonl"
    path.write_text(path.read_text() + '{"title": "x"}\n')
    with pytest.raises(NoCorpus, match=r"documents\.jsonl:6"):
        read_documents(tmp_path)


async def test_an_opened_index_searches_like_the_one_that_was_built(tmp_path: Path) -> None:
    built = await build_index(corpus(tmp_path), RetrievalSettings())
    opened = await open_retriever(tmp_path)
    for query in ("copy a file", "serve requests", "request_queue_size"):
        assert await opened.rankings(query) == await built.rankings(query)


async def test_a_learnt_reranker_beside_the_index_is_used_until_the_vectors_are_made_again(tmp_path: Path) -> None:
    await build_index(corpus(tmp_path), RetrievalSettings())
    assert (await open_retriever(tmp_path)).reranker is None
    fit_reranker(examples(10)).save(tmp_path / "index" / "reranker.json")
    found = (await open_retriever(tmp_path)).reranker
    assert len(getattr(found, "weights", ())) == len(FEATURES)
    await build_index(tmp_path, RetrievalSettings())
    assert (await open_retriever(tmp_path)).reranker is None


async def test_an_index_that_is_missing_or_of_other_documents_names_the_command(tmp_path: Path) -> None:
    corpus(tmp_path)
    with pytest.raises(NoIndex, match="headrace index"):
        await open_retriever(tmp_path)
    await build_index(tmp_path, RetrievalSettings())
    write_documents(DOCUMENTS[:2], tmp_path)
    with pytest.raises(NoIndex, match="other documents"):
        await open_retriever(tmp_path)


async def test_embeddings_of_an_endpoint_are_stored_and_belong_to_its_model(tmp_path: Path) -> None:
    async with endpoint(embeddings) as (http, url, asked):
        settings = RetrievalSettings(embeddings_url=url, embeddings_model="m")
        built = await build_index(corpus(tmp_path), settings, http)
        before = len(asked)
        opened = await open_retriever(tmp_path, settings, http)
        assert len(asked) == before  # vectors are read, not made again
        assert isinstance(opened.embedder, EndpointEmbedder)
        assert await opened.rankings("tests") == await built.rankings("tests")
        with pytest.raises(NoIndex, match="endpoint:m"):
            await open_retriever(tmp_path, RetrievalSettings(embeddings_url=url, embeddings_model="n"), http)


async def test_a_reranker_by_url_is_used_if_it_is_set(tmp_path: Path) -> None:
    await build_index(corpus(tmp_path), RetrievalSettings())
    async with endpoint(lambda path, body: {}) as (http, url, _):
        opened = await open_retriever(tmp_path, RetrievalSettings(reranker_url=url, reranker_model="m"), http)
        assert isinstance(opened.reranker, EndpointReranker)


@pytest.mark.parametrize(
    "settings",
    [
        {"embeddings_url": "http://localhost"},
        {"reranker_url": "http://localhost"},
        {"embeddings_url": "http://localhost", "embeddings_model": "m", "embedding_model": Path("m")},
    ],
)
def test_settings_that_do_not_fit_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"embeddings_url|reranker_url"):
        RetrievalSettings(**settings)


async def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="embedding_model"):
        await build_index(corpus(tmp_path), RetrievalSettings(embedding_model=tmp_path))


async def test_a_hugging_face_directory_embeds_by_the_mean_of_its_states(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

    from headrace.agents.retrieval.embedders import DirectoryEmbedder, unit_rows

    words = {word: place for place, word in enumerate(["[PAD]", "[UNK]", "copy", "file", "serve"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "model"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = BertModel(config).eval()
    model.save_pretrained(folder)

    found = await DirectoryEmbedder(folder, batch=2).embed(["copy file", "serve", "copy"])

    with torch.inference_mode():
        tokens = AutoTokenizer.from_pretrained(folder)("copy file", return_tensors="pt")
        alone = unit_rows(model(**tokens).last_hidden_state.mean(dim=1).numpy())
    assert found.shape == (3, 8)
    assert abs(found[0] - alone[0]).max() < 1e-5
