"""Products of bytes on processors with AVX-VNNI and without AVX-512, which this one need not be."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.tirx", reason="the cpu target needs Apache TVM")

from building import present, run
from networks import FEEDS, residual
from test_dense import GEOMETRIES, integer_case

from ptqc.codegen.cpu import isa, target
from ptqc.utils.machine import machine

pytestmark = pytest.mark.skipif(machine() != "x86_64", reason="is about x86-64")


@pytest.mark.skipif(isa.AVX512_VNNI not in present(), reason="this processor has no products of bytes")
def test_its_kernels_give_the_references_codes_through_the_instructions_of_avx512(tmp_path: Path) -> None:
    """The same vectors of half the length, in the encoding that this processor has."""
    here = replace(isa.AVX_VNNI, cpu=isa.AVX512_VNNI.cpu, features=isa.AVX512_VNNI.features, attributes=())
    cases = [integer_case(geometry, here, seed) for seed, geometry in enumerate(GEOMETRIES)]
    for geometry, result, (_, wanted) in zip(
        GEOMETRIES, run([c for c, _ in cases], here, tmp_path), cases, strict=True
    ):
        np.testing.assert_array_equal(result, wanted, str(geometry))


@pytest.mark.long
@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
def test_a_library_has_no_instruction_of_avx512(tmp_path: Path) -> None:
    made, file = residual()
    built = target.build(made.lowered, file, FEEDS, tmp_path, isa.AVX_VNNI.name)
    library = built.files["avx-vnni.so"]
    listing = subprocess.run(["objdump", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    assert "vpdpbusd" in listing
    assert not re.search(r"zmm|%ymm(1[6-9]|2\d|3[01])|%k[0-7]", listing)
