"""The program that measures a restart writes conversations that a gateway can restore."""

from headrace.agents.gateway.nodes import NodeStore
from headrace.agents.gateway.restore.fold import Latest
from headrace.agents.gateway.sessions import SessionStore
from tests.agents.gateway.restore.rebirth import fold_of
from tests.benchmarks.bench_gateway_restore import CONTEXT, SAMPLED, TURNS, records


def test_every_call_is_restored() -> None:
    nodes, sessions = NodeStore(1 << 30), SessionStore(10)
    found = fold_of(records(TURNS + 2)).restore(nodes, sessions, Latest.OF_ALL)
    assert (found.nodes, found.left_out, found.sessions, found.trajectories) == (TURNS + 2, 0, 2, 2)
    assert max(node.length for node in nodes) == TURNS * (CONTEXT + SAMPLED)
