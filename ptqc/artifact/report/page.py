"""The page: a table of contents, the headline figures, then one section after the other."""

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from ptqc.artifact.report.budgets import (
    cache_table,
    has_caches,
    has_latency,
    has_loss_budget,
    has_memory,
    has_microcontroller,
    has_outputs,
    has_sweep,
    latency_tables,
    loss_budget_table,
    memory_table,
    microcontroller_table,
    output_table,
    sweep_plots,
)
from ptqc.artifact.report.changed import changed_samples, changed_title, has_changed
from ptqc.artifact.report.checks import check_table
from ptqc.artifact.report.markup import CARD, SCRIPT, STYLE, coded, name, safe
from ptqc.artifact.report.plots import bits_plot, frontier_plot, size_plot
from ptqc.artifact.report.rows import ReportFacts
from ptqc.artifact.report.summary import cards
from ptqc.artifact.report.tables import activation_table, layer_table, note_list, reproducibility_table, worst_table
from ptqc.artifact.report.targets import (
    has_native,
    has_others,
    has_runtimes,
    native_tables,
    other_tables,
    runtime_table,
)
from ptqc.artifact.report.verdict import in_short, verdict
from ptqc.utils.text import entries

FEW_WARNINGS = 2
# Where the documentation is on the web; empty as long as it is nowhere, and headings then have no links.
DOCUMENTATION = ""
# Nothing is loaded from anywhere, and no script runs but the page's own, whatever a name in the model says.
OWN_SCRIPT = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{OWN_SCRIPT}'"


@dataclass(frozen=True)
class Section:
    """One section. key: its anchor. applies: whether it has anything to show. about: its page of the documentation."""

    key: str
    title: str | Callable[[ReportFacts], str]
    lead: str
    content: Callable[[ReportFacts], str]
    applies: Callable[[ReportFacts], bool] = lambda _facts: True
    about: str = "guides/judging-a-result.html"

    def titled(self, facts: ReportFacts) -> str:
        return self.title if isinstance(self.title, str) else self.title(facts)


def _float(facts: ReportFacts) -> str:
    return note_list(facts.float_notes, "Every operator that computes does so on integers.")


def _notes(facts: ReportFacts) -> str:
    return note_list(facts.other_notes, "There is nothing else to say.")


SECTIONS = (
    Section(
        "checks", "Checks", "What was checked before the file was written.", check_table, about="trust/verify.html"
    ),
    Section(
        "outputs",
        "Outputs",
        "What each output was compared as, and its divergence from the float model's on held-back samples: 0 for equal "
        "outputs. It is not a training loss.",
        output_table,
        has_outputs,
    ),
    Section(
        "changed",
        changed_title,
        "The held-back samples on which the compiled model is farthest from the float model. Images are shown as the "
        "model sees them, from black at the least value to white at the largest. In text, the tokens are marked at "
        "which the answer changed.",
        changed_samples,
        has_changed,
    ),
    Section("size", "Where the bytes are", "", size_plot),
    Section(
        "bits",
        "Bits per layer",
        "Stored bits per weight of each layer, in execution order. Hover over a bar for its name.",
        bits_plot,
        about="reference/formats.html",
    ),
    Section(
        "frontier",
        "Divergence against size",
        "The best choice of formats at each size, from the same measurements. `ptqc resolve` builds any of them in a "
        "third to two thirds of the time of a compile.",
        frontier_plot,
        about="guides/choosing-a-budget.html",
    ),
    Section(
        "sweep",
        "Measured frontier",
        "Files of several sizes from the same measurements, each built and compared with the float model on held-back "
        "samples. They are reconstructed once, on fewer samples than the delivered file.",
        sweep_plots,
        has_sweep,
        about="guides/choosing-a-budget.html",
    ),
    Section(
        "worst",
        "What costs most",
        "The weights with the largest predicted divergence. The remedy is the next format that loses less: how many "
        "bytes it adds, also in percent of the original, and what it takes off the divergence of all weights.",
        worst_table,
        about="guides/troubleshooting.html",
    ),
    Section(
        "layers",
        "Layers",
        "SQNR (signal to quantization noise) is that of the layer's output; the predicted divergence is that of the "
        "model's outputs. Sort by a column with a click on its heading.",
        layer_table,
        about="reference/formats.html",
    ),
    Section(
        "latency",
        "Latency",
        "Time of one sample, on one thread of the processor or on the GPU. It was predicted from the times of each "
        "operator in float and on integers; the delivered file or library was then measured.",
        latency_tables,
        has_latency,
        about="guides/faster.html",
    ),
    Section(
        "memory",
        "Memory",
        "The memory of the unpacked weights, and of a run of one sample on top of them, kernels' own buffers included. "
        "Not counted are the runtime itself, its copy of the graph, and the caller's inputs.",
        memory_table,
        has_memory,
        about="guides/less-memory.html",
    ),
    Section(
        "microcontroller",
        "Microcontroller",
        "What the network in C takes: its constants and code in flash, and the buffers, inputs and outputs that it "
        "works in. Not counted are the stack, and functions of the C library.",
        microcontroller_table,
        has_microcontroller,
        about="deploy/microcontrollers.html",
    ),
    Section(
        "caches",
        "Caches",
        "How keys and values of earlier tokens are stored, with their bytes at the longest text of the samples. The "
        "divergence of one cache alone was measured where a budget chose its format.",
        cache_table,
        has_caches,
        about="guides/decoders.html",
    ),
    Section(
        "loss-budget",
        "Accuracy budget",
        "Plans were built and measured on held-back samples, and their predictions were corrected accordingly. The "
        "files were then judged, from the largest to the smallest, until one failed: on samples that played no part "
        "in any choice (judging samples), or by `evaluate`, whose figure chose them, too.",
        loss_budget_table,
        has_loss_budget,
        about="guides/choosing-a-budget.html",
    ),
    Section("activations", "Activations", "", activation_table),
    Section("float", "What computes in float", "", _float),
    Section(
        "native",
        "Native library",
        "The comparison with the ONNX file on held-back samples and on edge inputs, before anything was written.",
        native_tables,
        has_native,
        about="deploy/native.html",
    ),
    Section("targets", "Targets", "Other files that were built beside the ONNX file.", other_tables, has_others),
    Section(
        "runtimes",
        "Runtimes",
        "The files in each runtime before they were delivered: the divergence from the float model on the same "
        "held-back samples, and what computes on integers there.",
        runtime_table,
        has_runtimes,
        about="deploy/deploying.html",
    ),
    Section("notes", "Notes", "What the compiler changed, and what it left alone.", _notes),
    Section(
        "reproducibility",
        "Reproducibility",
        "The same inputs, options and versions give the same bytes, unless a time limit or a measured latency decides.",
        reproducibility_table,
        about="reference/file-format.html",
    ),
)


def _operators(facts: ReportFacts) -> str:
    """Which operators the file has that are not ONNX's."""
    own = facts.manifest["file"].get("runtime_operators")
    return f"with operators of its own: {', '.join(own)}" if own else "with no custom operator"


def page(facts: ReportFacts) -> str:
    """HTML text."""
    source = facts.manifest["source"]["name"]
    sections = [section for section in SECTIONS if section.applies(facts)]
    links = "".join(f'<a href="#{section.key}">{section.titled(facts)}</a>' for section in sections)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{safe(source)} – ptqc report</title>
<style>{STYLE}</style></head>
<body><main>
<header><h1>{name(source, 90)}</h1>
<p class="lead">{_origin(facts)} The file runs in ONNX Runtime \
{safe(facts.manifest["file"]["oldest_onnxruntime"])} and newer, {safe(_operators(facts))}.</p></header>
{verdict(facts)}
{_warnings(facts)}
{cards(facts)}
<nav aria-label="sections">{links}</nav>
{"".join(_section(section, facts) for section in sections)}
<footer>Written by ptqc {safe(facts.manifest["ptqc"])}.</footer>
</main><script>{SCRIPT}</script></body></html>
"""


def card(facts: ReportFacts) -> str:
    """The verdict alone, for notebooks."""
    title = f"{name(facts.manifest['source']['name'])} · {safe(in_short(facts.manifest))}"
    return f'<div class="ptqc"><style>{CARD}</style><b>{title}</b>{verdict(facts)}</div>'


def _section(section: Section, facts: ReportFacts) -> str:
    lead = f"<p>{coded(section.lead)}</p>" if section.lead else ""
    link = f' <a class="about" href="{DOCUMENTATION}/{section.about}">what this means</a>' if DOCUMENTATION else ""
    title = f"<h2>{section.titled(facts)}{link}</h2>"
    return f'<section id="{section.key}">{title}{lead}\n{section.content(facts)}\n</section>\n'


def _origin(facts: ReportFacts) -> str:
    """Version, date, samples and command, as far as they are known."""
    date, command = facts.times.get("date"), facts.times.get("command")
    samples = f"{facts.manifest['calibration']['samples']:,} calibration samples"
    when = f" on {safe(date.partition('T')[0])}" if date else ""
    # Lines break between words: not behind the hyphens of an option.
    words = " ".join(f"<span>{safe(word)}</span>" for word in command.split(" ")) if command else ""
    how = f', with <code class="command">{words}</code>' if command else ""
    return f"Compiled by ptqc {safe(facts.manifest['ptqc'])}{when} on {samples}{how}."


def _warnings(facts: ReportFacts) -> str:
    """Each in a box; more than FEW_WARNINGS in one, so that they do not fill the first screen."""
    result = [_warning(note["message"], note["subject"]) for note in facts.warnings]
    option = facts.manifest["cpu"]["session_option_without_vnni"]
    if option:
        result.append(
            _warning(f"8-bit weights can saturate on x64 CPUs without VNNI; there, set {entries(option)}", "")
        )
    if len(result) <= FEW_WARNINGS:
        return "\n".join(f'<div class="warning" role="note"><b>Warning</b> {one}</div>' for one in result)
    items = "".join(f"<li>{one}</li>" for one in result)
    return f'<div class="warning" role="note"><b>{len(result)} warnings</b><ul>{items}</ul></div>'


def _warning(message: str, subject: str) -> str:
    about = f"{name(subject)} " if subject else ""
    return f"{about}{safe(message)}"
