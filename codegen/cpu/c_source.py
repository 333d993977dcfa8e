"""The C of a static library: its header, and the calls of its kernels."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from ptqc.codegen.cpu.plain import PlainKernel
from ptqc.codegen.kernels.isa import Isa
from ptqc.codegen.kernels.package import ready
from ptqc.codegen.kernels.writing import KernelSource, Loops
from ptqc.codegen.program.constants import Stored
from ptqc.codegen.program.memory import plan
from ptqc.codegen.program.program import CompiledKernel, Program, ProgramStep, Weights
from ptqc.runtime.lengths import Size, varies
from ptqc.runtime.library import ALIGNMENT

_IDENTIFIER = re.compile(r"[^\W\d]\w*")
COMMON = Path(__file__).with_name("static_library.c")
TYPES = {"bool": "uint8_t", "float16": "uint16_t", "float32": "float", "float64": "double"}
# What functions of a library return, and what that means.
STATUSES = {
    "OK": "no error",
    "WRONG_ARGUMENT": "a pointer is NULL, or a number is one that the library does not take",
    "WRONG_WEIGHTS": "these are not the bytes of the weights.bin that the library was built with",
    "NO_INSTRUCTION_SET": "the processor has none of the library's instruction sets, or not the one asked for",
    "NO_MEMORY": "there is not enough memory",
    "KERNEL_FAILED": "a kernel failed, or the system gave no thread-specific key",
}
# Where processors tell of what the system calls a feature: leaf, subleaf, register and bit of cpuid on x86-64, entry
# and bit of the auxiliary vector on Arm.
FEATURES = {
    "avx2": (7, 0, 1, 5),
    "avx512_bf16": (7, 1, 0, 5),
    "avx512_vnni": (7, 0, 2, 11),
    "avx512bw": (7, 0, 1, 30),
    "avx512cd": (7, 0, 1, 28),
    "avx512dq": (7, 0, 1, 17),
    "avx512f": (7, 0, 1, 16),
    "avx512vbmi": (7, 0, 2, 1),
    "avx512vl": (7, 0, 1, 31),
    "avx_vnni": (7, 1, 0, 4),
    "amx_bf16": (7, 0, 3, 22),
    "amx_int8": (7, 0, 3, 25),
    "amx_tile": (7, 0, 3, 24),
    "bmi1": (7, 0, 1, 3),
    "bmi2": (7, 0, 1, 8),
    "f16c": (1, 0, 2, 29),
    "fma": (1, 0, 2, 12),
    "movbe": (1, 0, 2, 22),
    "asimd": (16, 0, 0, 1),
    "asimddp": (16, 0, 0, 20),
    "bf16": (26, 0, 0, 14),
    "i8mm": (26, 0, 0, 13),
}
# Registers that the system has to save, as bits of XCR0, by the beginning of a feature's name.
STATES = {"avx": 0x6, "avx512": 0xE6, "amx": 0x60000}


@dataclass(frozen=True)
class CValue:
    """An input or output: its name in C and in the model, its type, and the elements of one sample as C."""

    name: str
    model_name: str
    dtype: str
    shape: tuple[Any, ...]
    elements: str

    @property
    def type(self) -> str:
        """Its type in C."""
        return TYPES.get(self.dtype, f"{self.dtype}_t")

    def __str__(self) -> str:
        return f"{_shown(self.model_name)}: {self.dtype} [{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class CInterface:
    """What the functions of a static library take and give.

    is_any: any number of samples; else one run of the model. fixed: inputs that are part of the library. lengths: names
    in C of those that vary. limits: whether they are allowed, as C.
    """

    name: str
    inputs: tuple[CValue, ...]
    outputs: tuple[CValue, ...]
    fixed: Mapping[str, np.ndarray]
    is_any: bool
    lengths: Mapping[str, str]
    limits: str

    @classmethod
    def of(cls, name: str, program: Program) -> "CInterface":
        """Of a program."""
        taken = [each for each in program.inputs if each not in program.fixed]
        inputs, outputs = _values(program, "in", taken), _values(program, "out", program.outputs)
        return cls(name, inputs, outputs, program.fixed, not program.sizes, _lengths(program), _limits(program))

    @property
    def prefix(self) -> str:
        """Of macros."""
        return self.name.upper()

    @property
    def numbers(self) -> list[str]:
        """The parameters for the number of samples, where there is one, and for lengths."""
        return [*(["samples"] if self.is_any else []), *self.lengths.values()]

    @property
    def run(self) -> str:
        """The declaration of the function that runs."""
        numbers = [f"int64_t {name}" for name in self.numbers]
        inputs = [f"const {value.type} *{value.name}" for value in self.inputs]
        outputs = [f"{value.type} *{value.name}" for value in self.outputs]
        parameters = [f"const {self.name}_model *model", "void *workspace", *numbers, *inputs, *outputs]
        return f"int {self.name}_run({', '.join(parameters)})"

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the functions: all that a library defines for others."""
        short = ("create", "free", "instruction_set", "message", "run", "workspace_bytes")
        return tuple(f"{self.name}_{each}" for each in short)


def _values(program: Program, role: str, names: Sequence[str]) -> tuple[CValue, ...]:
    """Inputs or outputs; each has a name of its own in C, also in a macro."""
    result: list[CValue] = []
    for name in names:
        layout, own = program.layouts[name], program.names.get(name, name)
        short = _identifier(role, own, [value.name for value in result])
        shape = program.sizes.get(name, ("N", *layout.shape))
        # Of a macro, whose arguments may be expressions.
        elements = _in_c(
            layout.elements, {length: f"({expression})" for length, expression in _lengths(program).items()}
        )
        result.append(CValue(short, own, layout.dtype, shape, elements))
    return tuple(result)


def _identifier(role: str, name: str, taken: Collection[str]) -> str:
    """A name for C that none of those taken is."""
    result = f"{role}_{re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_')}"
    while result in taken:
        result += "_"
    return result


def _lengths(program: Program) -> dict[str, str]:
    """Names in C of the lengths."""
    result: dict[str, str] = {}
    for length in program.lengths:
        result[length.name] = _identifier("length", length.name, result.values())
    return result


def _in_c(size: Size, lengths: Mapping[str, str]) -> str:
    """A size, as an expression of lengths where it varies."""
    if not varies([size]):
        return str(size)
    return f"({_IDENTIFIER.sub(lambda found: lengths[found[0]], str(size))})"


def _limits(program: Program) -> str:
    """Whether lengths are what the library takes."""
    names = _lengths(program)
    checks = [f"{names[each.name]} >= {each.least} && {names[each.name]} <= INT32_MAX" for each in program.lengths]
    checks += [f"{_in_c(limit.size, names)} <= {limit.most}" for limit in program.limits]
    return " && ".join(checks) or "1"


def _taken(lengths: Mapping[str, str]) -> str:
    """The lengths of a call by their names in C."""
    return "".join(f"  const int64_t {name} = lengths[{i}];\n" for i, name in enumerate(lengths.values()))


def _shown(name: str) -> str:
    """A name within a comment, which ends nothing there."""
    return re.sub(r"[^\w .:@+-]", "_", name, flags=re.ASCII)


@dataclass
class _Result:
    """What a kernel that unpacks constants makes. place: an expression of C, once it has one."""

    size: int
    place: str = ""

    def __str__(self) -> str:
        return self.place


@dataclass
class CProgram:
    """The calls of a program's kernels for one instruction set, as C. functions: the kernels by name."""

    isa: Isa
    program: Program
    weights: Weights
    loops: Loops
    functions: dict[str, PlainKernel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._memory, self._lengths = plan(self.program), _lengths(self.program)
        self._unpacking, self._ready = self._constants()
        self._calls = [self._call(step, own) for step, own in zip(self.program.steps, self._ready, strict=True)]

    @property
    def prefix(self) -> str:
        """Of its functions and kernels."""
        return self.isa.name.replace("-", "_")

    def kernel(self, called: KernelSource | CompiledKernel) -> str:
        """The name of a kernel's function."""
        compiled = called.compile(self.loops) if isinstance(called, KernelSource) else called
        name = f"{self.prefix}_{compiled.name}"
        if name not in self.functions:
            self.functions[name] = PlainKernel.of(compiled.function, name)
        return name

    def _constants(self) -> tuple[list[str], list[list[str]]]:
        """Calls that unpack constants, and where the constants of each step lie then."""
        calls: list[str] = []
        self.constant_bytes = self.scratch_bytes = 0
        places = [[self._constant(each, calls) for each in step.kernel.constants] for step in self.program.steps]
        return calls, places

    def _constant(self, constant: Stored, calls: list[str]) -> str:
        """Where a constant lies; the calls that unpack it are added."""
        emitted: list[tuple[str, Sequence[Any], _Result]] = []

        def call(source: KernelSource, arguments: Sequence[Any], size: int, dtype: str) -> _Result:
            emitted.append((self.kernel(source), arguments, _Result(size * np.dtype(dtype).itemsize)))
            return emitted[-1][-1]

        result = ready(call, self._stored, constant)
        self._place([each for _, _, each in emitted])
        calls += [f"{name}({', '.join(map(str, (*inputs, output)))})" for name, inputs, output in emitted]
        return str(result)

    def _stored(self, array: np.ndarray) -> str:
        return f"weights + {self.weights.place(array)}"

    def _place(self, results: Sequence[_Result]) -> None:
        """Give results their places: the last one is the constant."""
        scratch = 0
        for result in results[:-1]:
            result.place, scratch = f"scratch + {scratch}", scratch + _rounded(result.size)
        self.scratch_bytes = max(self.scratch_bytes, scratch)
        for result in results[-1:]:
            result.place = f"constants + {self.constant_bytes}"
            self.constant_bytes += _rounded(result.size)

    def _call(self, step: ProgramStep, constants: Sequence[str]) -> str:
        name = self.kernel(step.kernel)
        arguments = [*map(self._where, step.arguments), *constants, self._where(step.output)]
        lengths = [self._lengths[length] for length in step.kernel.lengths]
        samples = ["samples"] if self.functions[name].numbers > len(lengths) else []
        return f"{name}({', '.join([*arguments, *lengths, *samples])})"

    def _where(self, name: str) -> str:
        program = self.program
        if name in program.fixed:
            return f"{self.prefix}_fixed{list(program.fixed).index(name)}"
        if name in program.inputs:
            return f"inputs[{[each for each in program.inputs if each not in program.fixed].index(name)}]"
        if name in program.outputs:
            return f"outputs[{program.outputs.index(name)}]"
        return f"slot{self._memory.slots[name]}"

    def __str__(self) -> str:
        return "\n".join([*self._prototypes(), *self._fixed(), *self._prepare(), *self._run()])

    def _prototypes(self) -> Iterator[str]:
        for name, kernel in self.functions.items():
            taken = [*(["const void *"] * (kernel.pointers - 1)), "void *", *(["int64_t"] * kernel.numbers)]
            yield f"int32_t {name}({', '.join(taken)});"

    def _fixed(self) -> Iterator[str]:
        for number, array in enumerate(self.program.fixed.values()):
            if any(f"{self.prefix}_fixed{number}" in call for call in self._calls):
                data = ", ".join(map(str, array.tobytes()))
                yield f"static const uint8_t {self.prefix}_fixed{number}[] __attribute__((aligned(8))) = {{{data}}};"

    def _prepare(self) -> Iterator[str]:
        head = f"static int {self.prefix}_prepare(const uint8_t *weights, uint8_t *constants, uint8_t *scratch)"
        yield from ("", f"{head} {{", "  (void)weights, (void)constants, (void)scratch;")
        yield from (f"  if ({call}) return 1;" for call in self._unpacking)
        yield from ("  return 0;", "}", "")

    def _run(self) -> Iterator[str]:
        """Calls in their order, and the memory that they need."""
        names, taken = self._lengths, _taken(self._lengths)
        slots = [_slot([_in_c(size, names) for size in sizes]) for sizes in self._memory.sizes]
        unused = "".join(f", (void){name}" for name in names.values())
        yield f"static size_t {self.prefix}_workspace(const int64_t *lengths) {{"
        yield f"{taken}  (void)lengths{unused};"
        yield from (f"  return (size_t)({' + '.join(slots) or 0});", "}", "")
        yield f"static int {self.prefix}_call_all(const uint8_t *weights, const uint8_t *constants, uint8_t *workspace,"
        yield "    int64_t samples, const int64_t *lengths, const void *const *inputs, void *const *outputs) {"
        yield f"{taken}  (void)weights, (void)constants, (void)workspace, (void)lengths, (void)inputs{unused};"
        for number, size in enumerate(["0", *slots[:-1]][: len(slots)]):
            before = f"slot{number - 1}" if number else "workspace"
            yield f"  uint8_t *const slot{number} = {before} + samples * {size};"
        for step, call in zip(self.program.steps, self._calls, strict=True):
            yield f"  if ({call}) return 1;  // {_shown(step.value)}"
        yield from ("  return 0;", "}", "")

    @property
    def row(self) -> str:
        """Of the table of instruction sets."""
        features = self.isa.features
        states = 0
        for beginning, bits in STATES.items():
            states |= bits if any(feature.startswith(beginning) for feature in features) else 0
        numbers = f"{len(features)}, {hex(states)}, {self.constant_bytes}, {self.scratch_bytes}"
        functions = ", ".join(f"{self.prefix}_{name}" for name in ("workspace", "prepare", "call_all"))
        return f'{{"{self.isa.name}", {self.prefix}_features, {numbers}, {functions}}},'

    @property
    def features(self) -> str:
        """The table of what it needs of the processor."""
        rows = ", ".join("{" + ", ".join(map(str, FEATURES[name])) + "}" for name in self.isa.features)
        return f"static const struct feature {self.prefix}_features[] = {{{rows}}};"


def _slot(sizes: Sequence[str]) -> str:
    """Bytes of a slot for one sample: of the largest of some sizes."""
    largest = sizes[0]
    for size in sizes[1:]:
        largest = f"LARGER({largest}, {size})"
    return str(_rounded(int(largest))) if largest.isdigit() else f"WHOLE({largest})"


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def header(interface: CInterface, weights: bytes) -> str:
    """The header that programs include."""
    name, prefix = interface.name, interface.prefix
    statuses = "\n".join(f"  {prefix}_{status}, /* {text} */" for status, text in STATUSES.items())
    values = [*((value, "input") for value in interface.inputs), *((value, "output") for value in interface.outputs)]
    lengths = f"({', '.join(interface.lengths.values())})" if interface.lengths else ""
    elements = "\n".join(
        f"#define {prefix}_{value.name.upper()}_ELEMENTS{lengths} {value.elements} /* {kind} {value} */"
        for value, kind in values
    )
    return HEADER.format(
        name=name,
        prefix=prefix,
        statuses=statuses,
        elements=elements,
        weights_bytes=len(weights),
        fixed="".join(f"\n * {line}" for line in _fixed_inputs(interface)),
        of_samples=" of so many samples, one after the other" if interface.is_any else "",
        numbers="".join(f", int64_t {name}" for name in interface.numbers),
        run=_wrapped(f"{interface.run};"),
    )


def _wrapped(declaration: str) -> str:
    """A declaration in lines that end between parameters."""
    whole = re.sub("(?<!,) ", "\xa0", declaration)
    return fill(whole, 118, subsequent_indent="    ", break_long_words=False).replace("\xa0", " ")


def _fixed_inputs(interface: CInterface) -> Iterator[str]:
    for name, array in interface.fixed.items():
        shown = np.array2string(array, threshold=8, separator=", ").replace("\n", "")
        yield f"The input {_shown(name)} is part of the library: {shown}."


HEADER = """\
/*
 * A network that ptqc compiled: link lib{name}-MACHINE.a, and ship weights.bin with the program.
 * Nothing but libc, libm and pthread is needed; no function throws, and none runs before main.{fixed}
 */
#ifndef {prefix}_H
#define {prefix}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

/* Of weights.bin. */
#define {prefix}_WEIGHTS_BYTES {weights_bytes}

/*
 * Elements of one sample. In memory, the last axis varies fastest. A bool is a uint8_t, a float16 the uint16_t of its
 * bits.
 */
{elements}

/* What functions return. */
enum {{
{statuses}
}};

/* A network with its constants unpacked. It never changes, so threads may share it. */
typedef struct {name}_model {name}_model;

/*
 * Make a model of the bytes of weights.bin, which are used where they lie: they have to stay until the model is freed
 * (bytes that are not aligned to 8 are copied). instruction_set: its name, or NULL for the best that the processor has.
 * threads: that a run may use, the calling one included; 0: as many as there are processors. Returns a status.
 */
int {name}_create({name}_model **model, const void *weights, size_t bytes, const char *instruction_set, int threads);

/* The instruction set that a model uses. */
const char *{name}_instruction_set(const {name}_model *model);

/* Bytes that a run works in; 0 where the arguments are wrong. */
size_t {name}_workspace_bytes(const {name}_model *model{numbers});

/*
 * Compute the outputs{of_samples}. workspace: memory of the size above, which
 * every thread needs for itself, or NULL: it is then taken from the heap for this run. Pointers need the alignment of
 * their types only (workspace: none). Threads may call this at the same time with one model. Returns a status.
 */
{run}

/* What a status means. */
const char *{name}_message(int status);

/* Free a model, or nothing where it is NULL. */
void {name}_free({name}_model *model);

#ifdef __cplusplus
}}
#endif

#endif
"""


def source(interface: CInterface, programs: Sequence[CProgram], weights: bytes, checksum: int) -> str:
    """The C file of one machine."""
    name = interface.name
    inputs = ", ".join(value.name for value in interface.inputs)
    outputs = ", ".join(value.name for value in interface.outputs)
    return SOURCE.format(
        name=name,
        prefix=interface.prefix,
        bytes=len(weights),
        checksum=checksum,
        inputs=len(interface.inputs),
        outputs=len(interface.outputs),
        common=COMMON.read_text(encoding="utf-8"),
        programs="\n".join(map(str, programs)),
        features="\n".join(program.features for program in programs),
        rows="\n".join(f"    {program.row}" for program in programs),
        messages="\n".join(f'      "{text}",' for text in STATUSES.values()),
        numbers="".join(f", int64_t {name}" for name in interface.numbers),
        samples="samples" if interface.is_any else "1",
        limits=interface.limits,
        taken=_taken(interface.lengths),
        lengths=", ".join(interface.lengths.values()) or "0",
        run=interface.run,
        input_names=inputs or "NULL",
        output_names=outputs,
    )


SOURCE = """\
#define _GNU_SOURCE
#include "{name}.h"

#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <sys/auxv.h>
#endif

#define MODEL {name}_model
#define STATUS(status) {prefix}_##status
#define WEIGHTS_BYTES {bytes}
#define WEIGHTS_CHECKSUM {checksum}u
#define INPUTS {inputs}
#define OUTPUTS {outputs}

{common}
{programs}
{features}

static const struct instruction_set *known_sets(size_t *count) {{
  static const struct instruction_set sets[] = {{
{rows}
  }};
  *count = sizeof sets / sizeof *sets;
  return sets;
}}

int {name}_create({name}_model **model, const void *weights, size_t bytes, const char *instruction_set, int threads) {{
  return create(model, weights, bytes, instruction_set, threads);
}}

const char *{name}_instruction_set(const {name}_model *model) {{
  return model == NULL ? "" : model->set->name;
}}

static int are_allowed(const int64_t *lengths) {{
{taken}  (void)lengths;
  return {limits};
}}

size_t {name}_workspace_bytes(const {name}_model *model{numbers}) {{
  const int64_t lengths[] = {{{lengths}}};
  return workspace_bytes(model, {samples}, lengths);
}}

{run} {{
  const int64_t lengths[] = {{{lengths}}};
  const void *const inputs[] = {{{input_names}}};
  void *const outputs[] = {{{output_names}}};
  return run(model, workspace, {samples}, lengths, inputs, outputs);
}}

const char *{name}_message(int status) {{
  static const char *const messages[] = {{
{messages}
  }};
  return status >= 0 && status < (int)(sizeof messages / sizeof *messages) ? messages[status] : "unknown status";
}}

void {name}_free({name}_model *model) {{ release(model); }}
"""
