"""PTX to C++: each kernel becomes a function for one thread, and a function that launches it."""

import re
from collections.abc import Iterator
from dataclasses import replace

from ptqc.codegen.cuda.emulator import arithmetic, memory, warpgroups
from ptqc.codegen.cuda.emulator.operands import REGISTERS, TYPES, Operands, identifier
from ptqc.codegen.cuda.emulator.ptx import (
    Instruction,
    Label,
    NotEmulated,
    PtxKernel,
    Register,
    Scope,
    Variable,
    kernels,
    modules,
)

RULES = {
    re.compile(pattern): rule for pattern, rule in {**arithmetic.RULES, **memory.RULES, **warpgroups.RULES}.items()
}
LAUNCH = """static void {name}_thread(void** arguments) {{
{body}
}}
extern "C" __attribute__((visibility("default"))) const unsigned parameters_{name} = {count};
extern "C" __attribute__((visibility("default"))) const char* launch_{name}(const emulator::Launch* given) {{
  return emulator::launch({name}_thread, *given, {shared}, {is_grouped});
}}
"""


def translated(text: str) -> tuple[str, list[str]]:
    """C++ of modules of PTX, and the names of all kernels. Raises NotEmulated naming what is not understood.

    Those of the first module are called as there, others also by their architecture.
    """
    results: list[PtxKernel] = []
    for place, (architecture, module) in enumerate(modules(text).items()):
        ending = f"_sm_{architecture}" if place else ""
        results += (replace(kernel, name=kernel.name + ending) for kernel in kernels(module))
    parts = ['#include <bit>\n\n#include "warpgroups.h"\n', *map(_function, results)]
    return "\n".join(parts), [kernel.name for kernel in results]


def _function(kernel: PtxKernel) -> str:
    own = [statement for statement in kernel.statements if isinstance(statement, Variable)]
    places, size = _places([variable for variable in (*kernel.variables, *own) if variable.space == "shared"])
    local = [variable for variable in own if variable.space == "local"]
    tables = [variable for variable in kernel.variables if variable.table]
    registers = {statement.name for statement in kernel.statements if isinstance(statement, Register)}
    inputs = {name: f"given_{place}" for place, (_, name) in enumerate(kernel.parameters)}
    grouped = warpgroups.registers_of(kernel.statements)
    memories = frozenset(variable.name for variable in (*local, *tables))
    names = Operands(places, memories, inputs, frozenset(registers), grouped)
    lines = [
        f"{TYPES[kind]} given_{place} = *static_cast<{TYPES[kind]}*>(arguments[{place}]); (void)given_{place};"
        for place, (kind, _) in enumerate(kernel.parameters)
    ]
    lines += [
        f"alignas({memory.alignment}) static const uint8_t {memory.name}[] = {{{', '.join(map(str, memory.table))}}};"
        for memory in tables
    ]
    lines += [f"alignas({memory.alignment}) char {memory.name}[{memory.size}];" for memory in local]
    lines += [*_declared(kernel), *([warpgroups.table(grouped)] if grouped else [])]
    lines += _translated(kernel, names)
    body = "\n".join(f"  {line}" for line in lines)
    count, is_grouped = len(kernel.parameters), "true" if grouped else "false"
    return LAUNCH.format(name=kernel.name, body=body, shared=size, count=count, is_grouped=is_grouped)


def _places(variables: list[Variable]) -> tuple[dict[str, int], int]:
    """Where variables begin in shared memory, the one that the launch gives its size last, and bytes in front of it.

    Each begins at a place that is aligned to no more than it asks for.
    """
    places: dict[str, int] = {}
    end = 0
    for variable in sorted(variables, key=lambda variable: variable.size == 0):
        end += (variable.alignment - end) % (2 * variable.alignment)
        places[variable.name] = end
        end += variable.size
    return places, end


def _declared(kernel: PtxKernel) -> Iterator[str]:
    """Registers that are declared outside of inner scopes."""
    depth = 0
    for statement in kernel.statements:
        if isinstance(statement, Scope):
            depth += 1 if statement.opens else -1
        elif isinstance(statement, Register) and depth == 0:
            yield f"{REGISTERS[statement.kind]} {identifier(statement.name)} = 0;"


def _translated(kernel: PtxKernel, names: Operands) -> Iterator[str]:
    depth = 0
    for site, statement in enumerate(kernel.statements):
        match statement:
            case Scope(opens):
                depth += 1 if opens else -1
                yield "{" if opens else "}"
            case Label(name):
                yield f"{identifier(name)}:;"
            case Register(kind, name) if depth:
                yield f"{REGISTERS[kind]} {identifier(name)};"
            case Instruction():
                yield _instruction(statement, names, site)


def _instruction(instruction: Instruction, names: Operands, site: int) -> str:
    for pattern, rule in RULES.items():
        if match := pattern.fullmatch(instruction.opcode):
            text = rule(match, instruction.operands, names).replace("SITE", str(site))
            return f"if ({names.bits(instruction.guard)}) {{ {text} }}" if instruction.guard else text
    operands = ", ".join(instruction.operands)
    raise NotEmulated(f"the emulator of CUDA kernels does not know the instruction {instruction.opcode} {operands}")
