"""Every document for programs is as its schema in docs/reference/schemas says, without a key that no schema names."""

import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest
from json_outputs import collect

from ptqc import Artifact, BudgetResult, ExpandedModel, Latency, Note, OutputAgreement, Score
from ptqc.artifact.expanded import FileCost
from ptqc.artifact.results import AgreementFigure
from ptqc.artifact.verify import Verification
from ptqc.cli.parser import COMMANDS
from ptqc.execution.loading import LoadCost
from ptqc.options import CompileOptions
from ptqc.tools.comparing import ComparedModel, ModelComparison
from ptqc.tools.evaluating import EvaluatedModel, Evaluation
from ptqc.tools.evaluating.metric import Estimate
from ptqc.tools.inspecting.facts import Compilable, Inspection, Tensor
from ptqc.tools.running import RunOutputs

DOCS = Path(__file__).resolve().parent.parent / "docs"
sys.path.insert(0, str(DOCS))

import schema_tables  # noqa: E402

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema: pip install 'ptqc[test]'")
referencing = pytest.importorskip("referencing")

SCHEMAS = DOCS / "reference" / "schemas"
# Prints a script, not a document.
NO_DOCUMENT = ("completion", "help")


@cache
def schema(name: str) -> dict[str, Any]:
    return dict(json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8")))


def closed(part: Any) -> Any:
    """The same schema without room for keys that it does not name."""
    if isinstance(part, list):
        return [closed(one) for one in part]
    if not isinstance(part, dict):
        return part
    result = {key: closed(value) for key, value in part.items()}
    names_all = "properties" in part and "more keys" not in str(part.get("description"))
    return {**result, "additionalProperties": False} if names_all else result


def problems(name: str, document: object) -> Iterator[str]:
    resources = [
        (f"{path.name}", referencing.Resource.from_contents(closed(json.loads(path.read_text(encoding="utf-8")))))
        for path in SCHEMAS.glob("*.schema.json")
    ]
    validator = jsonschema.Draft202012Validator(
        closed(schema(name)), registry=referencing.Registry().with_resources(resources)
    )
    for error in validator.iter_errors(document):
        yield f"{error.json_path}: {error.message[:200]}"


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    return collect(tmp_path_factory.mktemp("documents"))


def names() -> list[str]:
    return sorted(path.name.partition(".")[0] for path in SCHEMAS.glob("*.schema.json"))


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in names() if name not in ("manifest", "run-times")])
def test_documents_are_as_their_schema_says(name: str, documents: dict[str, list[dict[str, Any]]]) -> None:
    assert documents[name]
    for document in documents[name]:
        assert list(problems(name, document)) == []


def test_every_command_has_a_schema() -> None:
    assert [name for name in COMMANDS if name not in NO_DOCUMENT and name not in names()] == []
    for name in names():
        jsonschema.Draft202012Validator.check_schema(schema(name))


def test_every_option_is_in_the_manifest() -> None:
    known = schema("manifest")["properties"]["options"]["properties"]
    assert set(known) == {option.name for option in fields(CompileOptions)}


def test_the_pages_have_the_tables_of_the_schemas() -> None:
    for page in schema_tables.PAGES:
        assert schema_tables.written(page) == page.read_text(encoding="utf-8"), page.name
        shown = {match[2] for match in schema_tables.MARKED.finditer(page.read_text(encoding="utf-8"))}
        assert shown <= set(names())


def of(name: str, *keys: str) -> set[str]:
    """The keys of an object in a schema, but for those of every document. keys: the way to the object."""
    part: dict[str, Any] = schema(name)
    for key in keys:
        part = part["properties"][key]
        part = part.get("items", part)
    return set(part["properties"]) - set(schema_tables.HEAD)


def attributes(kind: type) -> set[str]:
    own = {field.name for field in fields(kind)}
    return own | {name for name, value in vars(kind).items() if isinstance(value, property | cached_property)}


MANIFEST_OUTPUT = ("results", "outputs")


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (Artifact, of("compile")),
        (Artifact, of("resolve")),
        (BudgetResult, of("compile", "budgets")),
        (Latency, of("run-times", "latency")),
        (ExpandedModel, of("expand")),
        (FileCost, of("expand", "manifest", "expanded", "packed")),
        (LoadCost, of("expand", "manifest", "expanded", "packed", "load")),
        (Inspection, of("inspect")),
        (Compilable, of("inspect", "found")),
        (Tensor, of("inspect", "inputs")),
        (ModelComparison, of("compare")),
        (ComparedModel, of("compare", "models")),
        (OutputAgreement, of("compare", "models", "outputs")),
        (AgreementFigure, of("compare", "models", "outputs", "figures")),
        (Evaluation, of("eval")),
        (EvaluatedModel, of("eval", "models")),
        (Estimate, of("eval", "models", "score")),
        (Verification, of("verify")),
        (RunOutputs, of("run")),
        (Note, of("explain", "notes")),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_results_in_python_have_the_names_of_the_documents(kind: type, keys: set[str]) -> None:
    assert keys
    assert keys - attributes(kind) == set()


def test_what_python_says_of_an_output_is_in_the_manifest() -> None:
    assert attributes(OutputAgreement) - of("manifest", *MANIFEST_OUTPUT) == set()
    assert attributes(AgreementFigure) == of("manifest", *MANIFEST_OUTPUT, "figures")
    assert attributes(Score) - {"title", "difference"} <= of("manifest", "results")


def test_a_missing_key_and_an_unknown_one_are_noticed(documents: dict[str, list[dict[str, Any]]]) -> None:
    document = json.loads(json.dumps(documents["compile"][0]))
    del document["manifest"]["budget"]
    document["manifest"]["results"]["more"] = 1
    assert len(list(problems("compile", document))) == 2


def test_every_key_has_a_description() -> None:
    def lacking(part: Any, at: str) -> Iterator[str]:
        if isinstance(part, dict):
            for key, value in part.get("properties", {}).items():
                if not value.get("description"):
                    yield f"{at}.{key}"
            for key, value in part.items():
                yield from lacking(value, f"{at}.{key}")

    assert [place for name in names() for place in lacking(schema(name), name)] == []
