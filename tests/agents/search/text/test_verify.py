"""Every wrong task is rejected by the check that is meant for it, and no right one is lost."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.retrieval.passages import Document
from headrace.agents.search.text.candidates import Candidate, Hop
from headrace.agents.search.text.verify import Check, Corpus, contains, mentions, normalised, verify
from tests.agents.search.text.library import candidates, installed_corpus, installed_text, small_text

TEXT = small_text()
CORPUS = Corpus.of(TEXT.documents)
RIGHT = [candidate for hops in (1, 2, 3) for candidate in candidates(TEXT, CORPUS, hops)]


def checks(candidate: Candidate, corpus: Corpus = CORPUS) -> set[Check]:
    return {failure.check for failure in verify(candidate, corpus)}


def test_right_questions_pass_every_check() -> None:
    assert len(RIGHT) > 20
    assert {len(candidate.hops) for candidate in RIGHT} == {1, 2, 3}
    assert [candidate.question for candidate in RIGHT if verify(candidate, CORPUS)] == []


# Planted wrong tasks. Each changes a right candidate of the installed documentation in one way.

Plant = Callable[[Candidate, Random], Candidate]


def with_hop(candidate: Candidate, place: int, **changes: object) -> Candidate:
    hops = list(candidate.hops)
    hops[place] = replace(hops[place], **changes)  # type: ignore[arg-type]
    return replace(candidate, hops=tuple(hops))


def any_place(candidate: Candidate, rng: Random) -> int:
    return rng.randrange(len(candidate.hops))


def a_wrong_quote(candidate: Candidate, rng: Random) -> Candidate:
    place = any_place(candidate, rng)
    quote = candidate.hops[place].quotes[0]
    cut = rng.randrange(1, len(quote) - 1)
    return with_hop(candidate, place, quotes=(f"{quote[:cut]}~{quote[cut:]}",))


def another_value_in_the_quote(candidate: Candidate, rng: Random) -> Candidate:
    hop = candidate.hops[-1]
    changed = with_hop(candidate, -1, value="'planted'", quotes=(hop.quotes[0].replace(hop.value, "'planted'"),))
    return replace(changed, answer="'planted'")


def no_quote(candidate: Candidate, rng: Random) -> Candidate:
    return with_hop(candidate, any_place(candidate, rng), quotes=rng.choice([(), ("",), (" \n",)]))


def no_hop(candidate: Candidate, rng: Random) -> Candidate:
    return replace(candidate, hops=())


def a_quote_of_another_document(candidate: Candidate, rng: Random) -> Candidate:
    place = any_place(candidate, rng)
    others = [each for each in installed_corpus().documents if each != candidate.hops[place].doc_id]
    return with_hop(candidate, place, doc_id=rng.choice(others))


def a_document_that_does_not_exist(candidate: Candidate, rng: Random) -> Candidate:
    return with_hop(candidate, any_place(candidate, rng), doc_id="d9999")


def a_paraphrase(candidate: Candidate, rng: Random) -> Candidate:
    place = any_place(candidate, rng)
    hop = candidate.hops[place]
    form = rng.choice(["{0} has {1} {2}", "for {0}, the {1} is {2}", "{2} is what {0} uses as {1}"])
    return with_hop(candidate, place, quotes=(form.format(hop.subject, " ".join(hop.cues), hop.value),))


def another_case(candidate: Candidate, rng: Random) -> Candidate:
    place = any_place(candidate, rng)
    return with_hop(candidate, place, quotes=(candidate.hops[place].quotes[0].swapcase(),))


def a_quote_that_does_not_state_the_value(candidate: Candidate, rng: Random) -> Candidate:
    return replace(with_hop(candidate, -1, value="planted.Value"), answer="planted.Value")


def another_answer(candidate: Candidate, rng: Random) -> Candidate:
    return replace(candidate, answer="planted.Value")


def a_hop_that_does_not_lead_on(candidate: Candidate, rng: Random) -> Candidate:
    return replace(candidate, hops=(elsewhere(candidate, rng), *candidate.hops))


def a_hop_left_out(candidate: Candidate, rng: Random) -> Candidate:
    middle = candidate.hops[1:-1] if len(candidate.hops) > 2 else ()
    return replace(candidate, hops=(candidate.hops[0], *middle)) if len(candidate.hops) > 1 else no_hop(candidate, rng)


def elsewhere(candidate: Candidate, rng: Random) -> Hop:
    """The first hop of a question about something else."""
    own = {hop.subject for hop in candidate.hops}
    others = [hop for each in installed_candidates() for hop in each.hops[:1] if hop.subject not in own]
    return rng.choice([hop for hop in others if hop.value != candidate.hops[0].subject])


def the_answer_in_the_question(candidate: Candidate, rng: Random) -> Candidate:
    return replace(candidate, question=f"{candidate.question} Is it {candidate.answer} ?")


def a_question_about_something_else(candidate: Candidate, rng: Random) -> Candidate:
    return replace(candidate, question=candidate.question.replace(candidate.hops[0].subject, "planted.Thing"))


def evidence_as_a_distractor(candidate: Candidate, rng: Random) -> Candidate:
    return replace(candidate, distractors=(*candidate.distractors, rng.choice(candidate.hops).doc_id))


def a_distractor_without_a_shared_name(candidate: Candidate, rng: Random) -> Candidate:
    return replace(candidate, distractors=("planted-unrelated",))


def a_distractor_that_answers(candidate: Candidate, rng: Random) -> Candidate:
    return replace(
        candidate, distractors=(*candidate.distractors, f"planted-{installed_candidates().index(candidate)}")
    )


def itself(candidate: Candidate, rng: Random) -> Candidate:
    return candidate


PLANTS: dict[Plant, Check] = {
    a_wrong_quote: Check.QUOTED,
    another_value_in_the_quote: Check.QUOTED,
    no_quote: Check.EVIDENCE,
    no_hop: Check.EVIDENCE,
    a_quote_of_another_document: Check.QUOTED,
    a_document_that_does_not_exist: Check.QUOTED,
    a_paraphrase: Check.QUOTED,
    another_case: Check.QUOTED,
    a_quote_that_does_not_state_the_value: Check.STATES,
    another_answer: Check.LEADS_ON,
    a_hop_that_does_not_lead_on: Check.LEADS_ON,
    the_answer_in_the_question: Check.ASKS,
    a_question_about_something_else: Check.ASKS,
    evidence_as_a_distractor: Check.DISTRACTS,
}
"""Wrong task → the check that catches it."""

PLANTED_DOCUMENTS: dict[Plant, Check] = {
    itself: Check.UNIQUE,
    a_distractor_that_answers: Check.DISTRACTS,
    a_distractor_without_a_shared_name: Check.DISTRACTS,
}
"""The same, where a further document of the corpus makes the task wrong."""


def installed_candidates() -> list[Candidate]:
    """Right candidates of the installed documentation, of one, two and three hops."""
    return [each for hops in (1, 2, 3) for each in _sound(hops)]


def _sound(hops: int) -> Iterator[Candidate]:
    if hops not in _SOUND:
        corpus = installed_corpus()
        found = candidates(installed_text(), corpus, hops, 24)
        _SOUND[hops] = [each for each in found if not verify(each, corpus)][:20]
    yield from _SOUND[hops]


_SOUND: dict[int, list[Candidate]] = {}


def with_answers_elsewhere() -> Corpus:
    """The installed documentation, with a document beside each candidate that states one of its facts too."""
    planted = [Document("planted-unrelated", "unrelated", "nothing in common")]
    for number, candidate in enumerate(installed_candidates()):
        hop = candidate.hops[number % len(candidate.hops)]
        cues = f" with {' '.join(hop.cues)}" if hop.cues else ""
        text = f"notes\n\nAs everybody knows, {hop.subject}{cues}\nuses {hop.value}, always."
        planted.append(Document(f"planted-{number}", f"notes {number}", text))
    return Corpus.of([*installed_text().documents, *planted])


@pytest.mark.parametrize(("plant", "check"), PLANTS.items(), ids=[plant.__name__ for plant in PLANTS])
def test_every_planted_wrong_task_is_rejected_by_its_check(plant: Plant, check: Check) -> None:
    rng = Random(plant.__name__)
    right = installed_candidates()
    assert len(right) >= 55
    wrong = [
        plant(candidate, rng)
        for candidate in right
        if plant is not a_hop_that_does_not_lead_on or len(candidate.hops) < 4
    ]
    missed = [each for each in wrong if check not in checks(each, installed_corpus())]
    assert missed == []


@pytest.fixture(scope="module")
def answered_elsewhere() -> Corpus:
    return with_answers_elsewhere()


@pytest.mark.parametrize(
    ("plant", "check"), PLANTED_DOCUMENTS.items(), ids=[plant.__name__ for plant in PLANTED_DOCUMENTS]
)
def test_every_task_that_a_further_document_makes_wrong_is_rejected(
    plant: Plant, check: Check, answered_elsewhere: Corpus
) -> None:
    wrong = [plant(candidate, Random(0)) for candidate in installed_candidates()]
    assert len(wrong) >= 55
    assert [each for each in wrong if check not in checks(each, answered_elsewhere)] == []


def test_a_question_of_one_hop_more_than_its_evidence_is_rejected() -> None:
    longer = [each for each in installed_candidates() if len(each.hops) > 1]
    assert len(longer) >= 35
    assert [
        each for each in longer if Check.LEADS_ON not in checks(a_hop_left_out(each, Random(0)), installed_corpus())
    ] == []


def test_no_fact_of_the_installed_documentation_is_lost_without_a_document_that_answers_too() -> None:
    """Read independently: the witness has the subject, the cues and the value as they stand, in one paragraph."""
    text, corpus = installed_text(), installed_corpus()
    lost = 0
    for candidate in candidates(text, corpus, 1):
        for failure in verify(candidate, corpus):
            lost += 1
            assert failure.check is Check.UNIQUE, failure
            assert failure.witness is not None
            hop = candidate.hops[0]
            stated = [
                paragraph
                for paragraph in corpus.documents[failure.witness].text.split("\n\n")
                if all(each in " ".join(paragraph.split()) for each in (hop.subject, *hop.cues, hop.value))
            ]
            assert stated, (candidate.question, failure)
    assert lost < len(text.facts) / 100


@pytest.mark.parametrize("value", ["ready", "to", "'ready'", "'ready to serve'"])
def test_a_piece_of_a_constants_value_is_no_answer(value: str) -> None:
    line = "net.BANNER = 'ready to serve'"
    corpus = Corpus.of([Document("d1", "net", line)])
    hop = Hop("net.BANNER", (), value, "d1", (line,))
    failed = checks(Candidate("What is net.BANNER?", (hop,), value, (), "planted"), corpus)
    assert failed == (set() if value in line and len(value) > 10 else {Check.STATES})


def test_a_quote_over_two_chunks_is_rejected() -> None:
    lines = "\n".join(f"a.b.c{number} = {number} " + "word " * 30 for number in range(8))
    corpus = Corpus.of([Document("d1", "a.b", f"{lines}\n\na.b.size = 7")])
    hop = Hop("a.b", ("size",), "7", "d1", ("a.b.size = 7",))
    right = Candidate("What is the size of a.b?", (hop,), "7", (), "test")
    assert checks(right, corpus) == set()
    whole = normalised(corpus.documents["d1"].text)
    assert checks(with_hop(right, 0, quotes=(whole[whole.index("a.b.c2") :],)), corpus) == {Check.IN_A_CHUNK}


def test_another_value_for_the_same_name_elsewhere_makes_a_question_ambiguous() -> None:
    documents = [Document("d1", "a.b", "a.b.size = 7"), Document("d2", "notes", "in old versions a.b had size = 9")]
    right = Candidate(
        "What is the size of a.b?", (Hop("a.b", ("size",), "7", "d1", ("a.b.size = 7",)),), "7", (), "test"
    )
    assert checks(right, Corpus.of(documents[:1])) == set()
    assert checks(right, Corpus.of(documents)) == {Check.UNIQUE}


def test_a_class_that_names_two_bases_says_nothing_of_one_of_them() -> None:
    documents = [Document("d1", "a.B", "class a.B(a.C)"), Document("d2", "a.D", "class a.D(a.B, a.C)")]
    hop = Hop("a.B", (), "a.C", "d1", ("class a.B(a.C)",))
    assert checks(Candidate("What is the base of a.B?", (hop,), "a.C", (), "test"), Corpus.of(documents)) == set()


white_space = st.text(alphabet=" \n\t\u00a0", min_size=1, max_size=3)


@given(st.sampled_from(RIGHT), white_space)
def test_white_space_in_a_quote_does_not_matter(candidate: Candidate, space: str) -> None:
    quotes = tuple(quote.replace(" ", space) for quote in candidate.hops[0].quotes)
    assert checks(with_hop(candidate, 0, quotes=quotes)) == set()


@pytest.mark.parametrize(
    ("text", "part", "is_contained"),
    [
        ("length=16", "1", False),
        ("length=16", "16", True),
        ("x = 1.5", "1", False),
        ("x = -1", "1", False),
        ("x = 1.", "1", True),
        ("class a.b(c.d)", "c.d", True),
        ("class a.b(c.d)", "d", False),
        ("class a.b(c.d)", "c", False),
        ("x = 'a'", "'a'", True),
        ("anything", "", False),
        ("ab a", "a", True),
    ],
)
def test_values_are_found_as_whole_words_and_numbers(text: str, part: str, is_contained: bool) -> None:
    assert contains(text, part) == is_contained


def test_a_longer_dotted_name_mentions_its_beginning_only() -> None:
    assert mentions("a.b.c = 1", "a.b")
    assert not mentions("a.b.c = 1", "b.c")
    assert not mentions("a.bc = 1", "a.b")


def test_quotation_marks_and_compatibility_forms_are_normalised() -> None:
    assert normalised("“ﬁle”\n ‘x’") == "\"file\" 'x'"
