"""The report: one HTML file that needs no network and no script to be read."""

from collections.abc import Mapping
from typing import Any

from ptqc.artifact.report.page import page
from ptqc.artifact.report.rows import ReportFacts


def render(
    manifest: Mapping[str, Any],
    plan: Mapping[str, Any],
    sensitivity: Mapping[str, Any],
    times: Mapping[str, Any],
    changed: Mapping[str, Any] | None = None,
    sweep: Mapping[str, Any] | None = None,
) -> str:
    """HTML text, a function of its arguments alone.

    times: what differs from run to run; of an older artifact some of it may be missing.
    changed: the samples that changed most, where they were looked for.
    sweep: the measured frontier, where there is one.
    """
    return page(ReportFacts(manifest, plan, sensitivity, times, changed, sweep))
