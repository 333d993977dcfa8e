"""Static libraries run before they are delivered: a program in C is linked with one, here or in the emulator."""

import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptqc.codegen.cpu.c_source import CInterface, CValue
from ptqc.codegen.cpu.emulation import COMMAND, EMULATOR
from ptqc.codegen.cpu.package import linker
from ptqc.codegen.kernels.isa import Isa
from ptqc.errors import TargetError, VerificationError
from ptqc.runtime.interface import INTERFACE, WEIGHTS, Interface
from ptqc.utils.machine import machine
from ptqc.utils.scratch import scratch

# Each run is repeated with as many threads.
THREADS = (1, 2)
PROGRAM = """\
#include "{name}.h"

#include <stdio.h>
#include <stdlib.h>

static void *memory(size_t bytes) {{
  void *const result = malloc(bytes ? bytes : 1);
  if (result == NULL) exit(3);
  return result;
}}

static void check(int status) {{
  if (status == {prefix}_OK) return;
  fprintf(stderr, "%s\\n", {name}_message(status));
  exit(1);
}}

/* check WEIGHTS INSTRUCTION_SET: runs of standard input; each begins with its number of samples and lengths. */
int main(int count, char **values) {{
  static const int threads[] = {{{threads}}};
  enum {{ MODELS = sizeof threads / sizeof *threads }};
  {name}_model *models[MODELS];
  void *const weights = memory({prefix}_WEIGHTS_BYTES);
  FILE *const file = count == 3 ? fopen(values[1], "rb") : NULL;
  int64_t numbers[{count}];
  if (file == NULL || fread(weights, 1, {prefix}_WEIGHTS_BYTES, file) != {prefix}_WEIGHTS_BYTES) return 2;
  fclose(file);
  for (int i = 0; i < MODELS; ++i)
    check({name}_create(&models[i], weights, {prefix}_WEIGHTS_BYTES, values[2], threads[i]));
  while (fread(numbers, sizeof numbers, 1, stdin) == 1) {{
{numbers}
{inputs}
{outputs}
    for (int i = 0; i < MODELS; ++i) {{
      void *const workspace = i == 0 ? NULL : memory({name}_workspace_bytes(models[i]{passed}));
      check({name}_run(models[i], workspace{passed}, {arguments}));
{written}
      free(workspace);
    }}
{freed}
  }}
  for (int i = 0; i < MODELS; ++i) {name}_free(models[i]);
  free(weights);
  return 0;
}}
"""


# Inputs and outputs by name.
Run = tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]


def missing(isa: Isa) -> str | None:
    """Why a program for an instruction set cannot be run here, in words; None where it can."""
    if (refusal := isa.refusal()) is None:
        return None
    if isa.machine != "aarch64" or machine() == "aarch64" or shutil.which(EMULATOR) is None:
        return refusal
    return None


def compare(interface: CInterface, archive: Path, isa: Isa, expected: Sequence[Run]) -> dict[str, Any]:
    """Run a library for one of its instruction sets; what to tell of it. Raises VerificationError where bits differ.

    Header, weights and interface.json lie beside the archive. expected: runs of the shared library.
    """
    if reason := missing(isa):
        return {"missing": reason}
    with scratch() as folder:
        program = _compiled(interface, archive, isa, Path(folder))
        emulated = [] if isa.refusal() is None else COMMAND
        declared = Interface.read(archive.parent / INTERFACE)
        stream = b"".join(_input(interface, declared, feeds) for feeds, _ in expected)
        command = [*emulated, str(program), str(archive.parent / WEIGHTS), isa.name]
        done = subprocess.run(command, input=stream, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise TargetError(f"the static library for {isa.name} failed with {done.returncode}: {said}")
    count = _compare(interface, isa, done.stdout, expected)
    return {"numbers_compared": count, **({"emulator": EMULATOR} if emulated else {})}


def _compiled(interface: CInterface, archive: Path, isa: Isa, folder: Path) -> Path:
    """The program, linked with nothing but the archive and the system's libraries."""
    (folder / "check.c").write_text(_program(interface), encoding="utf-8")
    command = [linker(isa), "-x", "c", "-std=c99", "-O1", f"-I{archive.parent}", "check.c", "-x", "none"]
    done = subprocess.run(
        [*command, str(archive.resolve()), "-o", "check", "-lm", "-pthread"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise TargetError(f"a program is not linked with the static library for {isa.name}: {done.stderr[-400:]}")
    return folder / "check"


def _program(interface: CInterface) -> str:
    """Numbers name its variables, as names of the model may be those of the library's functions."""
    prefix = interface.prefix
    lengths = [f"length{i}" for i in range(len(interface.lengths))]
    values = [*interface.inputs, *interface.outputs]
    variables = {value.name: f"value{i}" for i, value in enumerate(values)}

    def sized(value: CValue) -> str:
        arguments = f"({', '.join(lengths)})" if lengths else ""
        return f"(size_t)(samples * {prefix}_{value.name.upper()}_ELEMENTS{arguments})"

    def declared(value: CValue) -> str:
        return f"    {value.type} *const {variables[value.name]} = memory({sized(value)} * sizeof({value.type}));"

    def lines(values: Sequence[CValue], form: str) -> str:
        return "\n".join(form.format(name=variables[value.name], sized=sized(value)) for value in values)

    reading = "    if (fread({name}, sizeof *{name}, {sized}, stdin) != {sized}) return 2;"
    return PROGRAM.format(
        name=interface.name,
        prefix=prefix,
        threads=", ".join(map(str, THREADS)),
        inputs="\n".join([*map(declared, interface.inputs), lines(interface.inputs, reading)]),
        outputs="\n".join(map(declared, interface.outputs)),
        written=lines(interface.outputs, "      fwrite({name}, sizeof *{name}, {sized}, stdout);"),
        freed=lines(values, "    free({name});"),
        count=1 + len(lengths),
        numbers="\n".join(
            f"    const int64_t {number} = numbers[{i}];" for i, number in enumerate(("samples", *lengths))
        ),
        passed="".join(f", {number}" for number in [*(["samples"] if interface.is_any else []), *lengths]),
        arguments=", ".join(variables.values()),
    )


def _input(interface: CInterface, declared: Interface, feeds: Mapping[str, np.ndarray]) -> bytes:
    batch, lengths = declared.check(feeds)
    numbers = [1 if batch is None else batch, *(lengths[name] for name in interface.lengths)]
    arrays = [np.ascontiguousarray(feeds[value.model_name]) for value in interface.inputs]
    return struct.pack(f"<{len(numbers)}q", *numbers) + b"".join(array.tobytes() for array in arrays)


def _compare(interface: CInterface, isa: Isa, printed: bytes, expected: Sequence[Run]) -> int:
    """How many numbers were compared."""
    start = count = 0
    for _, outputs in expected:
        arrays = [np.ascontiguousarray(outputs[value.model_name]) for value in interface.outputs]
        for threads in THREADS:
            for value, array in zip(interface.outputs, arrays, strict=True):
                if printed[start : start + array.nbytes] != array.tobytes():
                    raise VerificationError(
                        f"output {value.model_name} of the static library for {isa.name} with {threads} threads is not "
                        "that of the shared one"
                    )
                start += array.nbytes
        count += sum(array.size for array in arrays)
    if start != len(printed):
        raise VerificationError(f"the static library for {isa.name} gave {len(printed)} bytes of outputs, not {start}")
    return count
