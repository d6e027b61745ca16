"""Every Kafka client of headrace gets the options of TLS and SASL: no module opens one without them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.imports import LAYERS, ROOT

CLIENTS = {
    "aiokafka": {"AIOKafkaProducer", "AIOKafkaConsumer", "AIOKafkaAdminClient", "AIOKafkaClient"},
    "confluent_kafka": {
        *("Producer", "Consumer", "AdminClient", "SerializingProducer", "DeserializingConsumer"),
        *("AIOProducer", "AIOConsumer"),
    },
    "faust": {"App"},
}
"""Classes whose instances connect to Kafka, by package."""
OURS = {"ReportingConsumer", "ArrivalReader"}
"""Ours that are or hold such a client."""
SECURITY = {"with_security", "librdkafka_security"}
OTHERS = ROOT / "deploy" / "consumers"
"""Programs that run without headrace."""


def clients_in(tree: ast.Module) -> set[str]:
    """The names in ``tree`` of classes that connect to Kafka, also under another name, and of classes derived from
    them."""
    found = set(OURS)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            known = CLIENTS.get(node.module.split(".")[0], set())
            found |= {alias.asname or alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.split(".")[0]
                found |= {
                    f"{alias.asname or path}.{name}"
                    for name in CLIENTS.get(package, ())
                    for path in (package, alias.name)
                }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and found & {ast.unparse(base) for base in node.bases}:
            found.add(node.name)
    return found


def functions_of(tree: ast.Module) -> Iterator[tuple[ast.AST, list[ast.Call]]]:
    """The innermost function (or the module) of every call, with all calls directly in it."""
    pending: list[ast.AST] = [tree]
    while pending:
        owner, calls = pending.pop(), []
        inside: list[ast.AST] = [*ast.iter_child_nodes(owner)]
        while inside:
            node = inside.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                pending.append(node)
                continue
            if isinstance(node, ast.Call):
                calls.append(node)
            inside += ast.iter_child_nodes(node)
        yield owner, calls


def unsecured(source: str) -> list[str]:
    """The calls in ``source`` that open a client in a function without the options of TLS and SASL."""
    tree = ast.parse(source)
    clients, found = clients_in(tree), []
    for _, calls in functions_of(tree):
        names = {ast.unparse(call.func) for call in calls}
        opened = sorted(names & clients)
        if opened and not SECURITY & names:
            found += opened
    return found


SOURCES = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py")) if not path.is_relative_to(OTHERS)]


def test_no_client_of_kafka_is_opened_without_the_settings_of_security() -> None:
    found = {str(path.relative_to(ROOT)): calls for path in SOURCES if (calls := unsecured(path.read_text()))}
    assert found == {}


def test_the_factories_are_found() -> None:
    """The test above sees the places that open clients, so it would see others."""
    opening = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if unsecured(path.read_text().replace("with_security(", "other(").replace("librdkafka_security(", "other("))
    }
    assert opening == {
        "agents/delivery.py",
        "deploy/kafka/broker.py",
        "schemas/kafka/clients.py",
        "schemas/kafka/refused.py",
        "schemas/kafka/topic_ids.py",
        "streams/faust_shell/faust_app.py",
        "streams/reading/partition_reader.py",
        "streams/replay/delivery.py",
    }


@pytest.mark.parametrize(
    "source",
    [
        "from aiokafka import AIOKafkaProducer\nclient = AIOKafkaProducer()",
        "import aiokafka\ndef f():\n    return aiokafka.AIOKafkaConsumer('events')",
        "from confluent_kafka import Consumer as C\nclass A:\n    def f(self):\n        self.c = C({})",
        "def f():\n    from aiokafka.admin import AIOKafkaAdminClient as Admin\n    Admin()",
        "import faust\nclass Mine(faust.App): ...\nasync def f():\n    return Mine('a', broker='b')",
        "from aiokafka import AIOKafkaClient\ndef f():\n    def g():\n        with_security({})\n    AIOKafkaClient()",
        "from headrace.schemas.kafka.consumer import ReportingConsumer\ndef f():\n    ReportingConsumer('a')",
        "import confluent_kafka.admin\ndef f():\n    confluent_kafka.admin.AdminClient({})",
    ],
)
def test_a_client_without_them_is_found(source: str) -> None:
    assert len(unsecured(source)) == 1


def test_other_classes_of_these_names_are_not() -> None:
    assert unsecured("from starlette import App\ndef f():\n    App()\n    Producer()") == []
    assert unsecured("from aiokafka import AIOKafkaProducer as P\ndef f():\n    P(**with_security({}))") == []
    assert unsecured((Path(__file__)).read_text()) == []
