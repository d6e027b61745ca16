"""The benchmark of the gateway's engine side runs."""

from tests.benchmarks import bench_gateway_engine


def test_the_program_measures_each_part() -> None:
    found = bench_gateway_engine.run(calls=1, rounds=1, tokens=64, with_vllm=False)
    assert len(found) == 11
    assert all(len(rounds) == 1 and rounds[0] > 0 for rounds in found.values())
    assert "ms a call" in bench_gateway_engine.table(found)
