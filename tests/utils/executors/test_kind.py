"""Whether workers are alike."""

import json
import subprocess
import sys
from dataclasses import replace

from problems import environment

from ptqc.utils.executors.base import Kind

PRINT = "from ptqc.utils.executors.base import Kind; import json; print(json.dumps(Kind.here().to_json()))"


def test_a_process_is_like_itself_and_its_document() -> None:
    here = Kind.here()
    assert here.differences(here) == []
    assert Kind.of(here.to_json()) == here


def test_another_process_of_this_machine_is_alike() -> None:
    text = subprocess.run([sys.executable, "-c", PRINT], env=environment(""), capture_output=True, check=True).stdout
    assert Kind.here().to_json() == json.loads(text)


def test_each_difference_is_told() -> None:
    here = Kind.here()
    other = replace(here, processor="Z80", features="abc", products="None", source="", versions={"numpy": "0.1"})
    differences = here.differences(other)
    assert any(text.startswith("numpy is 0.1 there and ") for text in differences)
    assert any(text.startswith("onnxruntime is missing there and ") for text in differences)
    assert any("'Z80' there" in text for text in differences)
    assert any(text.startswith("only one of the processors has ") and "abc" in text for text in differences)
    assert any(text.startswith("matrices are multiplied for None there") for text in differences)
    assert "the files of ptqc are not the same" in differences
