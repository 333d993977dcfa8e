"""The report: well-formed, complete, self-contained, deterministic, and safe whatever a model's names hold."""

import base64
import copy
import hashlib
import re
from importlib import import_module
from pathlib import Path

import pytest
from report_documents import SWEEP, documents, loss_budget, note

from ptqc.artifact.report.budgets import loss_in_words, sweep_text
from ptqc.artifact.report.page import SECTIONS
from ptqc.artifact.report.rows import ReportFacts
from ptqc.artifact.report.tables import OPEN_ROWS

ROOT = Path(__file__).resolve().parents[3]
EVIL = '</title><script>alert("1")</script>\'&\u202egnp\u2066\n\x00\ud800.onnx'


def absent(text: str, *parts: str) -> list[str]:
    """Parts that a text does not have."""
    return [part for part in parts if part not in text]


def test_every_section_is_there_and_linked() -> None:
    page = documents().page()
    ids = {value for name, value in page.attributes if name == "id"}
    links = {value for name, value in page.attributes if name == "href"}
    assert {section.key for section in SECTIONS} <= ids
    assert links == {f"#{section.key}" for section in SECTIONS}
    assert page.tags.count("svg") == 4


def test_what_a_microcontroller_needs() -> None:
    text = documents().page().text
    assert "flash 63,000 bytes, 98.4 % of the budget of 64,000 B of flash" in text
    assert "most is needed while this is made y: x 8,000, y 8,000" in text


def test_how_caches_are_kept() -> None:
    text = documents().page().text
    assert "past_key int8 past_key, past_key.scale 250 24.4 % 0.0015 nat" in text


@pytest.mark.parametrize(
    ("unit", "kept", "expected"),
    [
        ("%same", True, "99.60 % same on 945 judging samples, at least 99.02 % same (90 % sure,"),
        ("nat", False, "NOT SHOWN TO BE MET: 0.004 nat on 945 judging samples, at most 0.0098 nat"),
        ("%drop", True, "0.00 points lost on 945 judging samples, at most 0.01 points lost"),
    ],
)
def test_a_budget_of_loss(unit: str, kept: bool, expected: str) -> None:
    docs = documents()
    docs.manifest["loss_budget"] = loss_budget(unit, 0.004, 0.0098, kept=kept)
    assert loss_in_words(docs.manifest["loss_budget"]).startswith(expected)
    text = docs.page().text
    assert "4,321" in text
    assert ("about 1,234" in text) is not kept
    docs.manifest["loss_budget"] = None
    assert "loss-budget" not in {value for name, value in docs.page().attributes if name == "id"}


def test_the_measured_frontier() -> None:
    text = sweep_text(SWEEP)
    assert "4,000  8.00 %" in text
    assert "the float model takes 2.500 ms (a runtime)" in text
    assert "there was time" not in text
    assert "there was time for 3 of 10 points" in sweep_text({**SWEEP, "asked": 10})
    page = documents().page()
    dots = [value for name, value in page.attributes if name == "class" and value == "point"]
    assert len(dots) >= len(SWEEP["points"])
    assert "6,000 bytes: 0.002 nat measured" in page.text


def test_how_outputs_were_judged() -> None:
    docs = documents()
    text = docs.page().text
    missing = absent(
        text,
        "boxes and scores, channels on axis 1",
        "SQNR of scores 27.1 dB",
        "values (channels 0 to 3)",
        "0.02",
    )
    assert missing == []
    docs.manifest["results"]["outputs"] = []  # as an older version wrote it
    assert "judged as" not in docs.page().text


def test_the_native_library() -> None:
    docs = documents()
    text = docs.page().text
    missing = absent(
        text,
        "104,112 bytes, and 12,345",
        "23,456 bytes of weights",
        "11 calls of 7 kernels",
        "67,904 bytes",
        "54,321 integers, 17 of them",
        "avx2",
    )
    assert missing == []
    docs.manifest["targets"]["cpu"]["libraries"][0]["verification"] = {"missing": "it does not run here"}
    assert "compared nothing: it does not run here" in docs.page().text
    docs.manifest["targets"] = {"cpu": {"missing": "no kernel for Cos c"}}
    assert "cpu: not built: no kernel for Cos c" in docs.page().text
    docs.manifest["targets"] = {}
    assert "Native library" not in docs.page().text


def test_a_target_that_builds_no_library_tells_its_numbers_and_texts() -> None:
    text = documents().page().text
    assert absent(text, "operators 1,234", "in order True", "share 0.123", "kind text") == []
    assert "more" not in text[text.index("operators 1,234") : text.index("kind text")]


def test_files_in_each_runtime_stand_side_by_side() -> None:
    docs = documents()
    text = docs.page().text
    rows = text[text.index("The files in each runtime") :]
    assert f"model.onnx {docs.manifest['file']['bytes']:,} ONNX Runtime 0.0111 nat the packed file" in rows
    assert "qdq 34,567 OpenVINO 9 0.0123 nat 6 of 7 layers on integers" in rows
    assert "qdq 34,567 Qualcomm HTP not run not verified: not asked for" in rows
    del docs.manifest["targets"]["qdq"]
    assert "The files in each runtime" not in docs.page().text


def test_the_latency() -> None:
    docs = documents(1)
    docs.manifest["latency"]["operators"].append(
        {
            "node": "sm", "operator": "Softmax", "compute": "float", "predicted_us": 7.0, "measured_us": 7.5,
            "float_us": 7.0, "integer_us": None,
        }
    )  # fmt: skip
    text = docs.page().text
    assert "predicted 1.95 ms measured 1.9 ms float network, at the same time 4.5 ms" in text
    assert "2 tensors: predicted 30 µs, measured 31 µs" in text
    assert "/features/conv0 Conv integer 120 118 300 120" in text
    assert "sm Softmax float 7 7.5 7 –" in text
    docs.manifest["latency"] = None
    assert "latency" not in {value for name, value in docs.page().attributes if name == "id"}


def test_a_latency_that_is_predicted() -> None:
    docs = documents(1)
    latency = docs.manifest["latency"]
    for entry, what in ((latency, "ms"), (latency["conversions"], "us"), (latency["operators"][0], "us")):
        entry[f"measured_{what}"] = None
    text = docs.page().text
    assert "predicted 1.95 ms measured nothing: the times are predicted from the figures of chips" in text
    assert "predicted for a runtime conversions between float and codes 2 tensors: predicted 30 µs" in text
    assert "/features/conv0 Conv integer 120 – 300 120" in text


def test_bit_flips_of_each_layer() -> None:
    text = documents(4).page().text
    # 50,000 MACs of 2 bits by 8, signed: 32 + 5 in the multiplier, 16 + 10 in the accumulator.
    assert "50 k 3.15 M" in text
    assert "/features/conv3" in text
    assert "layers in float, 40.0 % of the MACs, not counted" in text
    assert "not of this CPU" in text


def test_memory() -> None:
    docs = documents()
    text = docs.page().text
    missing = absent(
        text,
        "met yes",
        "1,580,245 bytes",
        "1,234,567 bytes",
        "345,678 bytes",
        "333,333 bytes",
        "45,678 bytes of weights, 67,904 bytes",
    )
    assert missing == []
    docs.manifest["memory"]["run_bytes"] = None
    assert "not reported by this release" in docs.page().text
    del docs.manifest["memory"]  # as an older version wrote it
    assert "memory" not in {value for name, value in docs.page().attributes if name == "id"}


def test_headline() -> None:
    text = documents().page().text
    missing = absent(
        text,
        "98.4 %",
        "SQNR 22.5 dB",
        "90.95",
        "91.20 for the float model: −0.25",
        "4 / 1",
        "optimal",
        "of the budget of 13%",
    )
    assert missing == []


def test_checks_are_listed_with_their_results() -> None:
    docs = documents()
    text = docs.page().text
    size, limit = docs.manifest["file"]["bytes"], docs.manifest["allocation"]["limit"]
    assert f"size ✓ passed {size:,} of {limit:,} bytes" in text
    assert "latency ✓ passed 1.9 ms measured, of 2 ms" in text
    assert "memory ✓ passed 1,580,245 of 1,600,000 bytes" in text
    assert "integer kernels ✓ passed 12,345 values of 4 kernels equal an integer reference, bit for bit" in text
    assert "library for avx2 ✓ passed 54,321 integers" in text
    assert "complete ✓ passed" in text
    docs.manifest["latency"]["measured_ms"] = 2.1
    docs.manifest["results"]["outputs"][0]["figures"][0]["low"] = True
    docs.manifest["unfit"] = ["few samples"]
    docs.manifest["verification"]["codes_compared"] = 0
    text = docs.page().text
    assert "latency ✗ failed 2.1 ms" in text
    assert "agreement ✗ failed SQNR of scores 27.1 dB on 32 held-back samples" in text
    assert "complete ✗ failed few samples" in text
    assert "integer kernels – open there are none" in text


def test_when_and_how_it_was_compiled() -> None:
    docs = documents()
    assert "Compiled by ptqc 0.1.0 on 128 calibration samples." in docs.page().text
    docs.times.update({"date": "2026-01-02T03:04:05+00:00", "command": "ptqc compile '<x>'"})
    assert "Compiled by ptqc 0.1.0 on 2026-01-02 on 128 calibration samples, with ptqc compile" in docs.page().text
    assert "&lt;x&gt;" in docs.html()


def test_runs_that_read_their_own_states_have_a_figure() -> None:
    docs = documents()
    fed = {"runs": 64, "loss": 0.0625, "single_loss": 0.0004, "loss_unit": "nat", "top1_agreement": 0.97}
    docs.manifest["results"]["fed_back"] = fed
    over = "divergence 0.0625 nat over 64 runs in a row; 4.00×10⁻⁴ with the states of the float model"
    assert f"same top class, reading its own states 97.0 % {over}" in docs.page().text
    docs.manifest["results"]["fed_back"] = {**fed, "top1_agreement": None}
    assert "divergence, reading its own states 0.0625 nat" in docs.page().text


def test_a_stranger_is_told_what_numbers_mean() -> None:
    text = documents().page().text
    assert "lower is better" in text
    assert "small 4.00×10⁻⁴ nat; 8-bit activations may cost 0.02 by default; SQNR 22.5 dB" in text
    assert "what 1 % more size would buy" in text
    assert "int integers with a scale per channel" in text
    assert "int4: 4 bits; 1 of 5 layers" in text
    assert "`" not in text


def test_headings_link_to_the_documentation_once_it_has_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("ptqc.artifact.report.page"), "DOCUMENTATION", "DOCS")
    links = [value for name, value in documents().page().attributes if name == "href" and value.startswith("DOCS/")]
    assert len(links) == len(SECTIONS)
    for link in links:
        assert (ROOT / "docs" / link.removeprefix("DOCS/")).with_suffix(".md").is_file(), link


def test_rows_of_short_tables_say_their_columns_on_narrow_screens() -> None:
    html = documents().html()
    assert '<td data-label="remedy">' in html
    assert '<td data-label="result" class="mark">✓ passed</td>' in html


def test_same_documents_same_bytes() -> None:
    assert documents().html() == documents().html()
    with_sums = documents()
    with_sums.manifest["files"] = {"model.onnx": "00" * 32}
    assert with_sums.html() == documents().html()


def test_documents_are_not_changed() -> None:
    docs = documents()
    before = copy.deepcopy(docs)
    docs.html()
    assert docs == before


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = documents().page()
    html = documents().html()
    assert not {name for name, _ in page.attributes} & {"srcset", "data", "action"}
    assert not {"link", "iframe", "object", "base"} & set(page.tags)
    assert all(value.startswith("data:image/jpeg;base64,") for name, value in page.attributes if name == "src")
    script = html.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert policy in [value for name, value in page.attributes if name == "content"]
    assert not [name for name, _ in page.attributes if name.startswith("on")]  # which the policy does not let run
    assert not re.search(r"https?://|@import", html)


@pytest.mark.parametrize(
    "field_name",
    [
        *("source", "budget", "layer", "weight", "site", "note", "library", "target", "sample"),
        *("answers", "text", "compute", "zero point", "rounding"),
    ],
)
def test_nothing_from_a_model_becomes_markup(field_name: str) -> None:
    docs = documents(name=EVIL + "{}" if field_name in ("layer", "site") else "/conv{}")
    match field_name:
        case "source":
            docs.manifest["source"]["name"] = EVIL
        case "budget":
            docs.manifest["budget"] = EVIL
        case "library":
            docs.manifest["libraries"][EVIL] = EVIL
        case "target":
            docs.manifest["targets"]["other"] = {"missing": EVIL}
            docs.manifest["targets"][EVIL] = {EVIL: EVIL}
        case "note":
            docs.manifest["notes"] += [note(EVIL, EVIL, EVIL, "warning"), note(EVIL, EVIL, EVIL)]
        case "sample":
            docs.changed["samples"][0] |= {"sample": EVIL, "pictures": {EVIL: "data:image/jpeg;base64,AAAA"}}
            docs.changed["samples"][0]["outputs"][0]["output"] = EVIL
        case "answers":
            docs.changed.update(differing=EVIL, of=EVIL)
        case "text":
            same = {"output": "y", "differing": 0, "of": EVIL, "changed": []}
            outputs = [same, {**same, "differing": EVIL, "changed": [[EVIL, "b", "c"]]}]
            docs.changed["samples"][0]["text"] = {"tokens": ["a"], "outputs": outputs}
        case "compute":
            docs.plan["weights"][0]["layers"] = dict.fromkeys(docs.plan["weights"][0]["layers"], EVIL)
        case "zero point":
            docs.plan["activations"][0]["zero_point"] = EVIL
        case "rounding":
            docs.plan["activations"].append({"site": "other", "format": EVIL})
        case "weight":
            docs.plan["weights"][0] = {"weight": EVIL, "format": "int2", "layers": {}}
            docs.sensitivity["weights"][0] |= {"weight": EVIL, "layers": {}}
    html = docs.html()
    assert docs.page().tags.count("script") == 1
    assert 'alert("' not in html
    assert not set(html) & set("\u202e\u2066\x00\ud800")
    assert "\\u202egnp" in html
    html.encode("utf-8")


def test_samples_that_changed() -> None:
    docs = documents()
    text = docs.page().text
    assert "samples[7] (cat.jpg) divergence 0.03 nat" in text
    assert "y : another class model class (probability) float 281 (60.0 %)" in text
    assert "y at 0, 17: another class" in text
    docs.changed["samples"][0]["outputs"][0]["compiled"][0][0] = 281
    assert "y : the same class" in docs.page().text
    assert "Samples that changed" in docs.page().text  # the other output's answer did
    docs.changed["samples"][0]["outputs"][1]["compiled"][0][0] = 281
    assert "Hardest samples: none changed its answer" in docs.page().text
    docs.changed["samples"][0]["outputs"] = []
    assert "Samples with the largest divergence" in docs.page().text


def test_samples_with_the_same_answer_stand_apart_from_those_that_changed() -> None:
    docs = documents()
    same = copy.deepcopy(docs.changed["samples"][0]) | {"sample": "easy"}
    for output in same["outputs"]:
        output["compiled"] = output["float"]
    docs.changed["samples"].insert(0, same)
    text = docs.page().text
    assert text.index("samples[7]") < text.index("Largest divergence with the same answer") < text.index("easy")


def test_objects_of_a_detector_are_drawn_for_both_models() -> None:
    docs = documents()
    box = {"label": 3, "score": 0.9, "box": [0.1, 0.2, 0.5, 0.6], "matched": True}
    alone = {"label": 7, "score": 0.4, "box": [0.5, 0.5, 0.9, 0.9], "matched": False}
    docs.changed["samples"][0]["objects"] = {
        "input": "input", "read": "corners in pixels", "size": [200, 100], "float": [box, alone], "compiled": [box],
    }  # fmt: skip
    page, html = docs.page(), docs.html()
    assert page.tags.count("image") == 2
    assert page.tags.count("img") == 0
    assert '<rect x="10.00" y="10.00" width="40.00" height="20.00" class="box"/>' in html
    assert html.count('class="box alone"') == 1
    assert ("aria-label", "float finds: class 3 90.0 %, class 7 40.0 %") in page.attributes
    assert "1 of 2 objects of the float model found again, 1 lost, 0 new" in page.text
    assert "Boxes were read as corners in pixels" in page.text


def test_tokens_at_which_the_answer_changed_are_marked() -> None:
    docs = documents()
    sample = docs.changed["samples"][0]
    sample["outputs"][0]["words"] = {"281": " cat", "282": " <dog>"}
    outputs = [{"output": "y", "of": 3, "differing": 1, "changed": [[1, " cat", " <dog>"]]}]
    sample["text"] = {"input": "ids", "tokens": [" the", " <b>", " sees"], "outputs": outputs}
    html = docs.html()
    assert "the<mark> &lt;b&gt;</mark> sees" in html
    assert "another token or class at 1 of 3 positions" in docs.page().text
    assert "&lt;dog&gt;&nbsp;(50.0" in html
    outputs[0] |= {"differing": 0, "changed": []}
    assert "the same at all 3 positions" in docs.page().text


def test_a_long_name_is_shortened_and_told_in_full() -> None:
    name = "/a" + "/very_long_scope" * 30 + "/conv{}"
    page = documents(name=name).page()
    full = name.replace("{}", "2")
    assert full not in page.text
    assert ("title", full) in page.attributes


@pytest.mark.parametrize("count", [1, 5, OPEN_ROWS, OPEN_ROWS + 1])
def test_long_tables_are_collapsed(count: int) -> None:
    page = documents(count).page()
    rows = f"{count:,} rows"
    assert (rows in page.text) == (count > OPEN_ROWS)


def test_two_thousand_layers() -> None:
    page = documents(2000).page()
    bars = [value for name, value in page.attributes if name == "class" and re.fullmatch(r"b\d", value)]
    assert len(bars) >= 2000
    widths = [float(value) for name, value in page.attributes if name == "width" and value[0].isdigit()]
    assert sum(width > 4 for width in widths) > 2000
    assert "2,000 rows" in page.text


def test_the_worst_come_with_a_remedy() -> None:
    docs = documents()
    facts = ReportFacts(docs.manifest, docs.plan, docs.sensitivity, docs.times)
    worst = facts.worst[0]
    assert worst.chosen.loss == facts.largest_loss
    assert worst.upgrade is not None
    extra, gain = worst.upgrade.bytes - worst.chosen.bytes, worst.chosen.loss - worst.upgrade.loss
    size = f"+{extra:,} B (+{100 * extra / facts.original:.2g} %)"
    assert f"{worst.upgrade.form}: {size}, −{100 * gain / facts.loss:.2g} % divergence" in docs.page().text


def test_the_remedy_for_the_widest_integers() -> None:
    docs = documents(6)
    for entry, measured in zip(docs.plan["weights"], docs.sensitivity["weights"], strict=True):
        entry["format"] = "int7"
        del measured["candidates"][-1]
    assert "allow_8bit adds 8 bits" in docs.page().text
    docs.manifest["options"]["allow_8bit"] = True
    assert "no larger format loses less than int7" in docs.page().text


def test_parts_add_up_to_the_file() -> None:
    docs = documents(40)
    facts = ReportFacts(docs.manifest, docs.plan, docs.sensitivity, docs.times)
    assert sum(part.bytes for part in facts.parts) == facts.size
    assert all(part.bytes > 0 for part in facts.parts)


def test_a_loss_of_zero() -> None:
    docs = documents()
    docs.manifest["allocation"] |= {"loss": 0.0, "price_of_one_percent": 0.0}
    for entry in docs.sensitivity["weights"]:
        entry["candidates"] = [c | {"loss": 0.0, "error": 0.0} for c in entry["candidates"]]
    for point in docs.sensitivity["frontier"]:
        point["loss"] = 0.0
    text = docs.page().text
    assert "No weight costs any predicted divergence." in text
    assert "no gain" in text
    assert "exact" in text


def test_one_frontier_point_at_this_very_file() -> None:
    docs = documents()
    docs.sensitivity["frontier"] = [
        {"bytes": docs.manifest["file"]["bytes"], "loss": docs.manifest["allocation"]["loss"]}
    ]
    assert docs.page().tags.count("svg") == 4


def test_no_frontier() -> None:
    docs = documents()
    docs.sensitivity["frontier"] = []
    assert "No frontier was computed" in docs.page().text


def test_no_activations() -> None:
    docs = documents()
    docs.plan["activations"] = docs.sensitivity["activations"] = []
    assert "no activation that an integer kernel could read" in docs.page().text


def test_float_activations() -> None:
    docs = documents()
    docs.plan["activations"] = []
    for entry in docs.sensitivity["activations"]:
        entry["quantized"] = False
    assert "0 of 5 activations are quantized" in docs.page().text


def test_no_weights() -> None:
    docs = documents()
    docs.plan["weights"] = docs.sensitivity["weights"] = []
    assert "No weight was found that could be packed." in docs.page().text


def test_a_given_plan_without_budget() -> None:
    docs = documents()
    budgets = ("budget", "latency", "memory", "flash", "ram", "caches", "loss_budget")
    docs.manifest.update(dict.fromkeys(budgets))
    docs.manifest["allocation"] |= {"status": "given", "price_of_one_percent": 0.0}
    text = docs.page().text
    assert "not chosen by the solver" in text
    assert "no budget" in text


def test_a_limit_that_bytes_of_the_file_do_not_ease() -> None:
    docs = documents()
    docs.manifest["budget"] = None
    docs.manifest["allocation"]["price_of_one_percent"] = None
    text = docs.page().text
    assert "; budget: " in text
    assert "64,000 B of flash, 20,000 B of RAM" in text
    assert "no other mix in this flash has less predicted divergence" in text
    assert "what 1 % more size would buy" not in text


def test_a_gap_and_no_classes_and_no_score() -> None:
    docs = documents()
    docs.manifest["allocation"]["gap"] = 0.02
    docs.manifest["loss_budget"] = None
    docs.manifest["results"] |= {"top1_agreement": None, "float_score": None, "compiled_score": None}
    text = docs.page().text
    assert "within 2.00 % no choice of this size has a predicted divergence that is lower by more than this" in text
    assert "signal to quantization noise 22.5 dB" in text
    assert "on your labelled data" not in text


def test_a_file_that_grew() -> None:
    docs = documents()
    docs.manifest["source"] |= {"bytes": 500, "weights": 1000}
    assert docs.page().tags.count("svg") == 4


def test_warnings_stand_above_the_sections() -> None:
    docs = documents()
    docs.manifest["notes"].append(note("judge", "", "agrees poorly", "warning"))
    docs.manifest["cpu"]["session_option_without_vnni"] = {"session.x64quantprecision": "1"}
    html = docs.html()
    assert html.count('class="warning"') == 2
    assert html.index("agrees poorly") < html.index("<section")
    assert "session.x64quantprecision=1" in html
    docs.manifest["notes"].append(note("judge", "y", "is low", "warning"))
    html = docs.html()
    assert html.count('class="warning"') == 1
    assert "<b>3 warnings</b><ul><li>" in html


def test_float_operators_and_notes_are_grouped() -> None:
    text = documents().page().text
    assert "Conv computes in float: it would cost too much /features/conv3" in text
    assert "Reshape is now Flatten × 5" in text
    assert "and 2 more" in text


def test_activations_that_cost_most() -> None:
    docs = documents()
    docs.manifest["activation_loss"] = 1.0
    assert "8-bit activations cost more than all weights together" in docs.page().text


def test_a_weight_that_layers_share_and_a_table() -> None:
    docs = documents()
    docs.plan["weights"][0]["layers"] = {"one": "integer", "two": "float"}
    docs.sensitivity["weights"][0]["layers"] = {"one": 1, "two": 2}
    docs.plan["weights"][1]["layers"] = docs.sensitivity["weights"][1]["layers"] = {}
    text = docs.page().text
    assert "one +1" in text
    assert "integer + float" in text
    assert "table" in text


def test_a_budget_that_nothing_bounds_is_in_the_checks() -> None:
    docs = documents()
    docs.manifest["loss_budget"] = loss_budget("%drop", 0.004, 0.0098, kept=False)
    docs.manifest["loss_budget"]["judged"] |= {"bound": None, "samples": 0}
    assert "accuracy ✗ failed 0.00 points lost, of the budget of 99%drop" in docs.page().text


def test_lines_of_drawings_are_not_filled() -> None:
    """A path is filled with black unless the style says otherwise."""
    html = documents().html()
    kinds = set(re.findall(r'<path d="[^"]*" class="(\w+)"', html)) - {"zoom"}
    assert {"curve", "predicted"} <= kinds
    assert [kind for kind in kinds if f".{kind}{{fill:none" not in html] == []


def test_names_that_differ_in_their_middle_are_told_apart() -> None:
    html = documents(12, "/model/blocks.{}/attention/self/query/MatMul_out").html()
    layers = html.partition('id="layers"')[2].partition("</section>")[0]
    assert len(set(re.findall(r"<td[^>]*><code[^>]*>([^<]*)</code>", layers))) == 12


def test_labels_of_this_file_and_of_the_budget_stand_apart() -> None:
    plot = documents(12).html().partition('id="frontier"')[2].partition("</section>")[0]
    places = {what: float(y) for y, what in re.findall(r'<text x="[^"]*" y="([^"]*)"[^>]*>(budget|this file)', plot)}
    assert abs(places["budget"] - places["this file"]) > 14
