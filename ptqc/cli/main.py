"""The process `ptqc`: runs one command and turns whatever goes wrong into an exit code and a line."""

import argparse
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from ptqc.cli.commands import TEXTS, document, flag
from ptqc.cli.parser import parse
from ptqc.errors import LIMITS, InternalError, Interrupted, PtqcError
from ptqc.utils import interrupts
from ptqc.utils.interrupts import MESSAGE, Stopped
from ptqc.utils.memory import lacks_memory
from ptqc.utils.text import printable, visible
from ptqc.utils.version import __version__

INTERRUPTED = 130
OUT_OF_MEMORY = "out of memory; give it more, or fewer --samples, and run the same command again"
# What these commands find is their result, no fault of ptqc: it needs no trace.
CHECKING = ("verify", "bisect")
NOTHING: Mapping[str, Any] = MappingProxyType({})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is that of `ptqc.errors`."""
    words, command = _split(sys.argv[1:] if arguments is None else arguments)

    def failed(
        kind: str, message: str, code: int, result: Mapping[str, Any] = NOTHING, figures: Mapping[str, Any] = NOTHING
    ) -> int:
        """Tell what went wrong: in a line, and as a document where that is asked for."""
        print(f"ptqc: {printable(message)}", file=sys.stderr)
        if "--json" in words:
            error = {"kind": kind, "message": message, "exit_code": code, **figures}
            print(document(words[0], {**result, "error": error}))
        return code

    try:
        options = parse(_joined(words), argparse.Namespace(command=command))
        if options.used:
            print(f"ptqc: {visible(options.used)}", file=sys.stderr)
        run: Callable[[argparse.Namespace], None] = options.run
        run(options)
    except PtqcError as error:
        is_fault = error.exit_code == InternalError.exit_code and words[0] not in CHECKING
        message = _internal_fault(error, words) if is_fault else _one_line(error)
        return failed(type(error).__name__, message, error.exit_code, error.found, error.figures)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as error:
        code = error.exit_code if isinstance(error, Stopped) else INTERRUPTED
        return failed(Interrupted.__name__, MESSAGE.removeprefix("ptqc: "), code)
    except Exception as error:
        if lacks_memory(error):
            return failed(Interrupted.__name__, OUT_OF_MEMORY, Interrupted.exit_code)
        if isinstance(error, OSError) and error.errno in LIMITS:  # any other one that gets here is a fault of ptqc
            message = f"{_one_line(error)}: fix that, and run the same command again"
            return failed(Interrupted.__name__, message, Interrupted.exit_code)
        return failed(type(error).__name__, _internal_fault(error, words), InternalError.exit_code)
    return 0


def run() -> NoReturn:
    """The process `ptqc`. An interrupt does not wait for what other threads are in the middle of."""
    interrupts.listen()
    code = main()
    interrupts.ignore()
    sys.stdout.flush()
    if code > 128:  # a signal
        os._exit(code)
    sys.exit(code)


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The arguments of ptqc, and the command behind `--` that `ptqc reduce` runs."""
    if arguments[:1] != ["reduce"] or "--" not in arguments:
        return arguments, ()
    end = list(arguments).index("--")
    return arguments[:end], arguments[end + 1 :]


def _joined(arguments: Sequence[str]) -> list[str]:
    """`--mean -1,2` as `--mean=-1,2`: argparse would take a value that begins with a minus sign for an option."""
    joined: list[str] = []
    for argument in arguments:
        if joined and re.fullmatch("--[a-z-]+", joined[-1]) and re.match(r"-\.?\d", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def _one_line(error: Exception) -> str:
    """The message without the line breaks that libraries put into theirs."""
    return " ".join(str(error).split())


def _internal_fault(error: Exception, words: Sequence[str]) -> str:
    """What to tell of a fault of ptqc, whose trace goes to a file that can be sent in."""
    path = Path.cwd() / "ptqc-fault.txt"
    trace = "".join(traceback.format_exception(error))
    try:
        path.unlink(missing_ok=True)
        # Never through a link that lies there, to wherever it leads.
        with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"ptqc {__version__}\n{_reproduction(words)}\n\n{trace}")
        where = f"details are in {path}"
    except OSError:
        where = trace
    return f"internal fault: {type(error).__name__}: {_one_line(error)}; {where}"


def _reproduction(words: Sequence[str]) -> str:
    """The command that failed, and of a compile the one that shrinks its model."""
    message = shlex.join(["ptqc", *words])
    if words[:1] != ["compile"]:
        return message
    words, texts = _without_texts(_joined(words))
    options = parse(words)
    stand_ins = {options.model: "{model}", options.calibration: "{data}"}
    is_given = options.calibration not in (None, "synthetic")
    samples = ["--data", options.calibration, *texts] if is_given else []
    configured = ["--calibration", "{data}"] if is_given and options.calibration not in words else []
    trial = [*(stand_ins.get(word, word) for word in words), *configured]
    reduction = shlex.join(["ptqc", "reduce", options.model, "-o", "small.onnx", *samples, "--", *trial])
    return f"{message}\n\nTo shrink the model to what matters:\n{reduction}"


def _without_texts(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a compile without the options of texts, which its samples are no more once they are arrays."""
    names, remaining, texts = [flag(name) for name in ("tokenizer", *TEXTS)], list[str](), list[str]()
    waiting = iter(words)
    for word in waiting:
        name = word.partition("=")[0]
        if name.replace("--no-", "--") not in names:
            remaining.append(word)
        elif name == word and not word.endswith("-special-tokens"):
            texts += [word, next(waiting)]
        else:
            texts.append(word)
    return remaining, texts


if __name__ == "__main__":
    run()
