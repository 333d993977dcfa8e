"""How each output was judged."""

from collections.abc import Iterator

from ptqc.artifact.report.markup import cell, name, safe, table
from ptqc.artifact.report.rows import Document, ReportFacts
from ptqc.utils.text import number

HEAD = ["output", "judged as", ">loss", "unit", "agreement with the float model"]


def has_outputs(facts: ReportFacts) -> bool:
    """Whether outputs were judged one by one, which artifacts of older versions were not."""
    return bool(facts.manifest["results"].get("outputs"))


def output_table(facts: ReportFacts) -> str:
    """One row per output, and one per group of its channels where there are several."""
    return table(HEAD, _rows(facts.manifest["results"]["outputs"]))


def _rows(outputs: list[Document]) -> Iterator[str]:
    for found in outputs:
        told = "; ".join(figure["text"] for figure in found["figures"])
        loss = cell(number(found["loss"]), found["loss"])
        yield cell(name(found["output"])) + cell(safe(found["judged_as"])) + loss + _rest(found["loss_unit"], told)
        if len(found["losses"]) > 1:
            for group, value in found["losses"].items():
                yield cell("") + cell(safe(group)) + cell(number(value), value) + _rest(found["units"][group], "")


def _rest(unit: str, told: str) -> str:
    return cell(safe(unit)) + cell(safe(told))
