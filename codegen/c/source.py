"""The C of a network: its header, its constants, and its calls in their order."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from textwrap import fill

from ptqc.codegen.c.arena import Arena
from ptqc.codegen.c.constants import C_TYPES, Constants, real
from ptqc.codegen.c.network import ALIGNMENT, SCRATCH, STRUCTURE, Buffer, Home, NetworkCalls, Place, Stream, Terminal

KERNELS = Path(__file__).with_name("kernels")
# Functions that each one needs, beside `base`, in the order in which they are written.
NEEDS = {
    "base": (),
    "requantize": (),
    "unpack": (),
    "fused": (),
    "exponential": ("requantize",),
    "sigmoid": ("exponential",),
    "hyperbolic_tangent": ("exponential",),
    "square_root": (),
    "elementwise": (),
    "pool": (),
    "channels": ("requantize",),
    "dense": ("channels", "unpack"),
    "depthwise": ("channels", "unpack"),
    "mean": ("requantize",),
    "largest": ("pool",),
    "average": ("requantize", "pool"),
    "add": ("requantize", "fused", "elementwise"),
    "mul": ("requantize", "elementwise"),
    "look_up": (),
    "limit": (),
    "softmax": ("requantize",),
    "quantize": ("requantize",),
    "dequantize": (),
    "move": (),
    "push_rows": (),
    "take": (),
    "real_unary": ("sigmoid", "hyperbolic_tangent", "square_root"),
    "real_softmax": ("exponential",),
    "real_limit": (),
    "real_binary": ("elementwise",),
    "real_mean": (),
    "real_weights": ("unpack",),
    "real_dense": ("real_weights",),
    "recurrent": ("real_weights", "sigmoid", "hyperbolic_tangent"),
    "lstm": ("recurrent",),
    "gru": ("recurrent",),
}
# Structures of constants are called like their function, but for these.
STRUCTURES = {
    **dict.fromkeys(("largest", "average"), "window"),
    **dict.fromkeys(("add", "mul", "real_binary"), "pair"),
    **dict.fromkeys(("lstm", "gru"), "recurrent"),
}
LINE = 118


@dataclass(frozen=True)
class CTerminal:
    """An input or output. name: of the parameter in C."""

    name: str
    terminal: Terminal

    @property
    def type(self) -> str:
        """Of its elements in C."""
        return C_TYPES[self.terminal.tensor.dtype]

    @property
    def description(self) -> str:
        """Its name in the model, its sizes in memory, and what its elements are."""
        tensor = self.terminal.tensor
        sizes = " x ".join(str(tensor.shape[axis]) for axis in tensor.order[tensor.shape[:1] == (1,) :]) or "1"
        is_last = not tensor.is_ordered(tuple(range(len(tensor.shape))))
        what = "codes of 8 bits" if self.terminal.codes else tensor.dtype
        return f"{_shown(self.terminal.name)}: {sizes}{', channels last' if is_last else ''}, {what}"


@dataclass(frozen=True)
class CSource:
    """The files of a network. name: that they and the function begin with.

    states: inputs that take an output of the run before, by the name of the output in the model.
    """

    name: str
    network: NetworkCalls
    arena: Arena
    states: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def inputs(self) -> list[CTerminal]:
        """Parameters that are read."""
        return _terminals("in", self.network.inputs, ())

    @cached_property
    def outputs(self) -> list[CTerminal]:
        """Parameters that are written."""
        return _terminals("out", self.network.outputs, [each.name for each in self.inputs])

    @property
    def macro(self) -> str:
        """What macros begin with."""
        return f"PTQC_{self.name.upper()}"

    @cached_property
    def structures(self) -> dict[int, str]:
        """Constants of steps by number, each with its type."""
        result = {}
        for number, step in enumerate(self.network.steps):
            if step.structure is not None:
                kind = STRUCTURES.get(step.function, step.function)
                text = fill(step.structure(self.arena.panels[number]), LINE - 4, break_on_hyphens=False)
                result[number] = f"static const struct {kind} step_{number} = {text};"
        return result

    @property
    def declaration(self) -> str:
        """Of the function."""
        parameters = [f"const {each.type} *{each.name}" for each in self.inputs]
        parameters += [f"{each.type} *{each.name}" for each in self.outputs]
        return _wrapped(f"int ptqc_{self.name}_{self.verb}({', '.join(parameters)})")

    @property
    def verb(self) -> str:
        """What the function is called after the name of the network."""
        return "run" if self.network.stream is None else "push"

    def files(self) -> dict[str, str]:
        """Texts by the names of their files."""
        source = self.source()  # whose structures add constants
        return {f"{self.name}.h": self.header(), f"{self.name}.c": source, f"{self.name}_weights.h": self.weights()}

    def weights(self) -> str:
        """Constants, which the source includes."""
        constants: Constants = self.network.constants
        head = f"/* Constants of {self.name}.c: {constants.bytes} bytes. */\n"
        return f"{head}#include <stdint.h>\n\n{constants}"

    def header(self) -> str:
        """What programs include."""
        lines = []
        for each in (*self.inputs, *self.outputs):
            name = self._macro(each)
            lines.append(f"/* {each.description} */")
            lines.append(f"#define {name}_ELEMENTS {each.terminal.tensor.size}")
            if each.terminal.codes:
                scale, zero = each.terminal.codes
                lines += [f"#define {name}_SCALE {real(scale)}", f"#define {name}_ZERO_POINT {zero}"]
                what, value = ("CODE", "x") if each in self.inputs else ("REAL", "code")
                lines.append(
                    f"#define {name}_{what}({value}) ptqc_{what.lower()}({value}, {name}_SCALE, {name}_ZERO_POINT)"
                )
        has_codes = any(each.terminal.codes for each in (*self.inputs, *self.outputs))
        stream = self.network.stream
        return HEADER.format(
            name=self.name,
            macro=self.macro,
            functions=CODE_FUNCTIONS if has_codes else "",
            terminals="\n".join((*lines, *self._next_states())),
            bytes=self.arena.bytes,
            run=self.declaration,
            codes=CODES_TEXT if has_codes else "",
            needs="memcpy and memset" if stream is None else "memcpy, memmove and memset",
            memory="takes no memory from a heap"
            + (", and keeps nothing from one run to the next" if not stream else ""),
            calls=RUN_TEXT if stream is None else self._stream_header(stream),
        )

    def _stream_header(self, stream: Stream) -> str:
        """What programs call frame by frame, and the sizes of a stream."""
        before = "all frames of the recording" if stream.is_padded else f"the last {stream.window} frames"
        return STREAM_TEXT.format(
            name=self.name,
            macro=self.macro,
            frames=stream.frames,
            first=stream.first,
            states=self.network.state_bytes,
            before=before,
        )

    def _macro(self, each: CTerminal) -> str:
        return f"{self.macro}_{each.name.upper()}"

    def _next_states(self) -> Iterator[str]:
        """How an element of an output becomes that of the input that takes it in the next run."""
        inputs = {each.terminal.name: each for each in self.inputs}
        for output in self.outputs:
            state = inputs.get(self.states.get(output.terminal.name, ""))
            if state is None or not state.terminal.tensor.is_ordered(output.terminal.tensor.order):
                continue
            value, zero = "(value)", "0.0f"
            if state.terminal.codes != output.terminal.codes:
                value = f"{self._macro(output)}_REAL(value)" if output.terminal.codes else value
                value = f"{self._macro(state)}_CODE({value})" if state.terminal.codes else value
            if state.terminal.codes:
                zero = f"{self._macro(state)}_ZERO_POINT"
            yield f"/* A state: first {state.name}[i] = {self._macro(state)}_ZERO, and after each run"
            yield f" * {state.name}[i] = {self._macro(state)}_NEXT({output.name}[i]). */"
            yield f"#define {self._macro(state)}_ZERO {zero}"
            yield f"#define {self._macro(state)}_NEXT(value) {value}"

    def source(self) -> str:
        """The functions that the network needs, and the one that calls them."""
        stream = self.network.stream
        needed = {step.function for step in self.network.steps}
        kinds = sorted({kind for step in self.network.steps for kind in step.kinds if kind != "raw"})
        structures = "\n".join(self.structures.values())
        return SOURCE.format(
            name=self.name,
            functions=functions(needed, kinds),
            structures=structures,
            bytes=max(self.arena.bytes, 8),
            run=self.declaration,
            pointers=" || ".join(f"!{each.name}" for each in (*self.inputs, *self.outputs)) or "0",
            calls="\n".join(self._calls()),
            state="" if stream is None else self._state(),
            begin="" if stream is None else "  if (!calls) begin();\n",
            status="0" if stream is None else f"calls < {stream.first}u && ++calls < {stream.first}u ? 2 : 0",
        )

    def _state(self) -> str:
        """Memory that stays from one call to the next, and how it begins."""
        begins = "".join(
            f"  memset(STATE({place}), {self.network.states[buffer]}, {buffer.bytes});\n"
            for buffer, place in self.state_places.items()
        )
        return STATE.format(name=self.name, bytes=max(self.network.state_bytes, ALIGNMENT), begins=begins)

    @cached_property
    def state_places(self) -> dict[Buffer, int]:
        """Where memory begins that stays from one call to the next."""
        result, place = {}, 0
        for buffer in self.network.states:
            result[buffer] = place
            place += -(-buffer.bytes // ALIGNMENT) * ALIGNMENT
        return result

    def _calls(self) -> Iterator[str]:
        for number, step in enumerate(self.network.steps):
            arguments = ", ".join(self._argument(number, each) for each in step.arguments)
            yield f"  {step.function}({arguments});"
            if step.tensor is not None and step.value:
                where = self._place(Place(step.tensor.buffer))
                yield f"  PTQC_TRACE({number}, {where}, {step.tensor.buffer.bytes}u);"

    def _argument(self, number: int, argument: str | Place) -> str:
        if isinstance(argument, Place):
            return self._place(argument)
        if argument == STRUCTURE:
            return f"&step_{number}"
        if argument == SCRATCH:
            return f"AT({self.arena.scratch[number]})"
        return argument

    def _place(self, place: Place) -> str:
        buffer = place.buffer
        if buffer.home is Home.ARENA:
            return f"AT({self.arena.places[buffer] + place.offset})"
        if buffer.home is Home.STATE:
            return f"STATE({self.state_places[buffer] + place.offset})"
        names = {each.terminal.tensor.buffer: each.name for each in (*self.inputs, *self.outputs)}
        if buffer.home is Home.FLASH:
            return (
                buffer.name if not place.offset else f"(const void *)((const uint8_t *){buffer.name} + {place.offset})"
            )
        name = names[buffer]
        if not place.offset:
            return name
        const = "const " if any(name == each.name for each in self.inputs) else ""
        return f"({const}void *)(({const}uint8_t *){name} + {place.offset})"


def _terminals(role: str, terminals: Sequence[Terminal], taken: Collection[str]) -> list[CTerminal]:
    result: list[CTerminal] = []
    for terminal in terminals:
        short = re.sub(r"[^a-z0-9]+", "_", terminal.name.lower()).strip("_")
        name = f"{role}_{short}" if short else role
        while name in taken or name in [each.name for each in result]:
            name += "_"
        result.append(CTerminal(name, terminal))
    return result


def functions(names: Collection[str], kinds: Sequence[str]) -> str:
    """Functions of C with all that they need. kinds: of packings that they meet, but for plain ones."""
    needed, parts = _needed(names), []
    for name in (each for each in NEEDS if each in needed):
        parts.append((KERNELS / f"{name}.c").read_text(encoding="utf-8"))
        if name == "unpack":
            parts += [(KERNELS / f"unpack_{kind}.c").read_text(encoding="utf-8") for kind in kinds]
            parts.append(dispatch(kinds))
    return "\n".join(parts)


def _needed(functions: Collection[str]) -> set[str]:
    """Functions with all that they need."""
    needed, left = {"base"}, list(functions)
    while left:
        name = left.pop()
        if name in NEEDS and name not in needed:
            needed.add(name)
            left += NEEDS[name]
    return needed


def dispatch(kinds: Sequence[str]) -> str:
    """The function that unpacks rows, however they are packed."""
    cases = "\n".join(f"    case {kind.upper()}: unpack_{kind}(reader, rows, out); break;" for kind in kinds)
    head = "PTQC_INLINE void unpack_rows(struct reader *reader, uint32_t rows, int8_t *out) {"
    if not kinds:
        return f"{head}\n  (void)reader, (void)rows, (void)out;\n}}\n"
    return f"{head}\n  switch (reader->weights->kind) {{\n{cases}\n    default: break;\n  }}\n}}\n"


def _shown(name: str) -> str:
    """A name of a model in a comment."""
    return (
        "".join(c if c.isprintable() and c.isascii() else "?" for c in name).replace("*/", "* /").replace("/*", "/ *")
    )


def _wrapped(declaration: str) -> str:
    whole = re.sub("(?<!,) ", "\xa0", declaration)
    return fill(whole, LINE, subsequent_indent="    ", break_long_words=False).replace("\xa0", " ")


CODES_TEXT = """
 * Codes stand for (code - ZERO_POINT) * SCALE: a real number x is the code round(x / SCALE) + ZERO_POINT, within 0 and
 * 255. The macros ..._CODE(x) and ..._REAL(code) compute this."""

CODE_FUNCTIONS = """\
#ifndef PTQC_CODES
#define PTQC_CODES
/* To the nearest code, and halves to the even number of steps. */
static inline uint8_t ptqc_code(float x, float scale, int zero_point) {
  const float steps = x / scale;
  int code;
  float part;
  if (!(steps > -256.0f)) return 0; /* not-a-number, too */
  if (steps > 256.0f) return 255;
  code = (int)steps;
  part = steps - (float)code;
  if (part > 0.5f || (part == 0.5f && code % 2 != 0)) ++code;
  if (part < -0.5f || (part == -0.5f && code % 2 != 0)) --code;
  code += zero_point;
  return (uint8_t)(code < 0 ? 0 : code > 255 ? 255 : code);
}

static inline float ptqc_real(uint8_t code, float scale, int zero_point) { return (float)(code - zero_point) * scale; }
#endif

"""

RUN_TEXT = "/* Compute the outputs. Returns 0; 1 where a pointer is null. Not for several threads at a time. */"

STREAM_TEXT = """\
/* Bytes that a call leaves to the next, in another static array. */
#define {macro}_STATE_BYTES {states}

/* New frames of a call, and the call that gives the first outputs. */
#define {macro}_FRAMES {frames}
#define {macro}_FIRST {first}

/* The next frames begin a new recording. */
void ptqc_{name}_reset(void);

/*
 * Take new frames, and compute the outputs of {before}. Returns 0; 1 where a pointer is null;
 * 2 before the call {macro}_FIRST, while outputs mean nothing. Not for several threads at a time.
 */"""

STATE = """
static union {{
  double aligned;
  uint8_t bytes[{bytes}];
}} state;
#define STATE(place) ((void *)(state.bytes + (place)))
static uint32_t calls;

void ptqc_{name}_reset(void) {{ calls = 0; }}

static void begin(void) {{
{begins}}}
"""

HEADER = """\
/*
 * A network that ptqc compiled: compile {name}.c with the program. It needs a C99 compiler, {needs}.
 * It takes no memory from a heap{memory}.{codes}
 */
#ifndef {macro}_H
#define {macro}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{functions}{terminals}

/* Bytes of memory that a run works in: a static array of {name}.c. */
#define {macro}_ARENA_BYTES {bytes}

{calls}
{run};

#ifdef __cplusplus
}}
#endif

#endif
"""

SOURCE = """\
#include "{name}.h"

#include <stddef.h>
#include <string.h>

#include "{name}_weights.h"

/* For tests: what each step computes. */
#ifndef PTQC_TRACE
#define PTQC_TRACE(step, data, bytes) ((void)0)
#endif

{functions}
{structures}

static union {{
  double aligned;
  uint8_t bytes[{bytes}];
}} arena;
#define AT(place) ((void *)(arena.bytes + (place)))
{state}
{run} {{
  if ({pointers}) return 1;
{begin}{calls}
  return {status};
}}
"""
