"""The JSON Schema: published as it is printed, and of one mind with the reader."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from phalanx.cli.config import read_job_file
from phalanx.cli.config.schema import json_schema, json_schema_text
from phalanx.cli.mistakes import UsageError
from phalanx.cli.options import OPTIONS, section_of

ROOT = Path(__file__).parents[3]
SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
KEYS = [(section_of(one), one.dest) for one in OPTIONS if section_of(one) and one.later is None]
VALUES: list[Any] = [
    1,
    0,
    -1,
    1.5,
    True,
    None,
    "",
    "1",
    "2:4",
    "gpu",
    "spawn",
    "c10d",
    "on",
    "5m",
    "SIGTERM",
    "${NUMBER}",
    "$${NUMBER}",
    "a,b",
    [],
    [1, 2],
    ["SIGTERM", "SIGINT"],
    ["a,b"],
    [[1]],
    {},
    {0: 3},
    {"timeout": 5},
    {"a": [1]},
]


def as_yaml(document: Any, path: Path) -> Path:
    with path.open("w") as file:
        YAML(typ="safe", pure=True).dump(document, file)
    return path


def schema_takes(path: Path) -> bool:
    return bool(VALIDATOR.is_valid(_with_text_keys(YAML(typ="safe", pure=True).load(path.read_text()))))


def _with_text_keys(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _with_text_keys(one) for key, one in value.items()}
    return [_with_text_keys(one) for one in value] if isinstance(value, list) else value


def reader_takes(path: Path) -> bool:
    try:
        read_job_file(str(path), {"NUMBER": "3"}, overruled=())
    except UsageError:
        return False
    return True


def test_the_published_schema_is_the_one_that_is_printed() -> None:
    published = ROOT / "docs/configuration.schema.json"
    assert published.read_text() == json_schema_text(), f"phalanx config-schema > {published}"


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", ["local", "cluster"])
def test_the_examples_are_taken_by_both(name: str) -> None:
    example = ROOT / f"examples/{name}.yaml"
    assert schema_takes(example)
    assert read_job_file(str(example), {"STORE": "node0:29400"}, overruled=(), names_program=False).texts


@pytest.mark.parametrize(
    "document",
    [
        {"job": {"rol": "a"}},
        {"jobs": {}},
        {"job": []},
        [],
        {"elastic": {"nnodes": [1, 2]}},
        {"elastic": {"max_restarts": -1}},
        {"script": {"path": "a", "module": "b"}},
        {"script": {"args": ["x"]}},
        {"script": {"start_method": "spoon"}},
        {"script": {"command": "true", "args": "x"}},
        {"script": {"command": "true", "args": [None]}},
        {"env": {"A=B": "1"}},
        {"env": {"A": None}},
        {"env": {"A": [1]}},
        {"logs": {"tee": {0: [3]}}},
        {"store": {"rdzv_conf": {"a": None}}},
    ],
    ids=str,
)
def test_what_is_wrong_by_its_structure_is_wrong_for_both(document: Any, tmp_path: Path) -> None:
    path = as_yaml(document, tmp_path / "job.yaml")
    assert not schema_takes(path)
    assert not reader_takes(path)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = {}
    for section, dest in draw(st.lists(st.sampled_from(KEYS), max_size=4, unique=True)):
        document.setdefault(section, {})[dest] = draw(st.sampled_from(VALUES))
    if draw(st.booleans()):
        document["env"] = {"A": draw(st.sampled_from(VALUES))}
    if draw(st.booleans()):
        kind = draw(st.sampled_from(["module", "command", "args", "path"]))
        document.setdefault("script", {})[kind] = draw(st.sampled_from(VALUES))
    return document


@given(document=documents())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_the_reader_takes_the_schema_takes(document: dict[str, Any], tmp_path: Path) -> None:
    path = as_yaml(document, tmp_path / "job.yaml")
    if reader_takes(path):
        VALIDATOR.validate(_with_text_keys(YAML(typ="safe", pure=True).load(path.read_text())))


@pytest.mark.parametrize(("section", "dest"), KEYS, ids=lambda part: part)
def test_each_key_with_each_kind_of_value_is_taken_by_the_schema_if_the_reader_takes_it(
    section: str, dest: str, tmp_path: Path
) -> None:
    for value in VALUES:
        path = as_yaml({section: {dest: value}}, tmp_path / "job.yaml")
        assert schema_takes(path) or not reader_takes(path), value


def test_the_examples_of_the_page_are_read(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```yaml\n(.*?)^```$", (ROOT / "docs/configuration.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) >= 2
    for block in blocks:
        (tmp_path / "job.yaml").write_text(block)
        found = read_job_file(
            str(tmp_path / "job.yaml"), {}, overruled=["nproc_per_node"], names_program=False
        )
        assert found.texts or block.startswith("#")
