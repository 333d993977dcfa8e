"""Faults that are planted into the PTX of a library, by what goes wrong. Each changes kernels of one family."""

import re
from collections.abc import Callable

Change = Callable[[str], str]
KERNEL = re.compile(r"(?=\.visible \.entry )")
# Registers in braces: inputs, weights and sums of products.
FOUR, TWO = r"\{(%r\d+), (%r\d+), (%r\d+), (%r\d+)\}", r"\{(%r\d+), (%r\d+)\}"
ADDED, FUSED = r"add\.s32(\s+%r\d+), (%r\d+), %r\d+;", r"fma\.rn\.f32(\s+%f\d+), %f\d+, %f\d+, (%f\d+);"
MULTIPLY = rf"mma\.sync\S+ {FOUR}, {FOUR}, {TWO}, {FOUR}"


def change(family: str, pattern: str, to: str, number: int | None = None) -> Change:
    """In kernels of a family, every match of a pattern becomes something else; or only one in each kernel."""

    def kernel(text: str) -> str:
        if not text.startswith(f".visible .entry {family}"):
            return text
        if number is None:
            return re.sub(pattern, to, text)
        result = list(re.finditer(pattern, text))
        if not -len(result) <= number < len(result):
            return text
        match = result[number]
        return text[: match.start()] + match.expand(to) + text[match.end() :]

    return lambda ptx: "".join(map(kernel, KERNEL.split(ptx)))


def _products(to: str) -> Change:
    """Other operands of every product. Groups: 1 to 4 new sums, 5 to 8 inputs, 9 and 10 weights, 11 to 14 old sums."""
    head = "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
    return change("dense_mma", MULTIPLY, head + to)


STORE = r"(?:@!?%p\d+\s+)?st\.global[^;]*;"

FAULTS: dict[str, Change] = {
    # stores
    "every second store left out": change("dense_mma", rf"({STORE}[\s\S]*?){STORE}", r"\1"),
    # barriers
    "all barriers left out": change("dense_mma", r"\n\s*bar(rier)?\.sync[^;]*;", "\n"),
    "the first barrier left out": change("dense_mma", r"bar(rier)?\.sync[^;]*;", "", 0),
    "the second barrier left out": change("dense_mma", r"bar(rier)?\.sync[^;]*;", "", 1),
    "the last barrier left out": change("dense_mma", r"bar(rier)?\.sync[^;]*;", "", -1),
    # copies
    "copies waited for too late": change("dense_mma", r"wait_group\s+(\d+);", r"wait_group 1\1;"),
    "copies never waited for": change("dense_mma", r"cp\.async\.wait_(group\s+\d|all);", "cp.async.commit_group;"),
    "the first wait left out": change("dense_mma", r"cp\.async\.wait_group\s+\d+;", "", 0),
    "the last wait left out": change("dense_mma", r"cp\.async\.wait_group\s+\d+;", "", -1),
    "no copies belong to a group": change("dense_mma", r"cp\.async\.commit_group;", ""),
    "half of a copy": change("dense_mma", r"(cp\.async\.cg\S+ [^;]*), 16;", r"\1, 16, 8;", 0),
    "a copy from the next piece": change("dense_mma", r"(cp\.async\.cg\S+ \[%r\d+\], \[%rd\d+)\]", r"\1+16]", 0),
    "a copy to the next piece": change("dense_mma", r"(cp\.async\.cg\S+ \[%r\d+)\]", r"\1+16]", 0),
    "a copy left out": change("dense_mma", r"cp\.async\.cg[^;]*;", "", 1),
    # layouts in shared memory and in registers
    "rows read from another piece": change("dense_mma", r"(ldmatrix\S+ \{[^}]*\}, \[%r\d+)\]", r"\1+16]", 0),
    "matrices exchanged": change("dense_mma", rf"(ldmatrix\S+) {FOUR}", r"\1 {\2, \4, \3, \5}"),
    "weights read from another place": change("dense_mma", r"(ld\.shared\.\S+\s+[^;]*, \[%r\d+)\]", r"\1+16]", 0),
    "inputs with a sign": change("dense_mma", r"s32\.u8\.s8\.s32", "s32.s8.s8.s32"),
    "weights without a sign": change("dense_mma", r"s32\.u8\.s8\.s32", "s32.u8.u8.s32"),
    "registers of weights exchanged": _products(r"{\1, \2, \3, \4}, {\5, \6, \7, \8}, {\10, \9}, {\11, \12, \13, \14}"),
    "registers of inputs exchanged": _products(r"{\1, \2, \3, \4}, {\5, \7, \6, \8}, {\9, \10}, {\11, \12, \13, \14}"),
    "registers of sums exchanged": _products(r"{\2, \1, \3, \4}, {\5, \6, \7, \8}, {\9, \10}, {\11, \12, \13, \14}"),
    "a product left out": change("dense_mma", r"mma\.sync[^;]*;", "", 1),
    "the last pixel left out": change("dense_mma", r"setp\.gt\.s32(\s+%p\d+, %r\d+, %r\d+);", r"setp.ge.s32\1;"),
    # inner products of four bytes
    "bytes of depthwise inputs exchanged": change("depthwise", r" 29538;", " 29522;"),
    "depthwise weights without a sign": change("depthwise", r"dp4a\.u32\.s32", "dp4a.u32.u32"),
    "a depthwise tap left out": change("depthwise", r"dp4a\.u32\.s32\s+[^;]*;", "", 2),
    "weights of the dense layer without a sign": change("dense", r"dp4a\.s32\.u32", "dp4a.u32.u32"),
    # packing
    "codes unpacked from the next place": change("arrange", r"(ld\.global\.nc\.[su]8\s+%rs\d+, \[%rd\d+)\]", r"\1+1]"),
    "packed weights cut short": change("arrange", r"setp\.gt\.s32(\s+%p1, %r\d+), 8;", r"setp.gt.s32\1, 7;"),
    # scales, zero points, saturation, rounding
    "rounded down": change("dense_mma", r"cvt\.rni\.f32\.f32", "cvt.rmi.f32.f32"),
    "rounded up": change("depthwise", r"cvt\.rni\.f32\.f32", "cvt.rpi.f32.f32"),
    "cut instead of rounded": change("dense", r"cvt\.rni\.f32\.f32", "cvt.rzi.f32.f32"),
    "not saturated at 255": change("dense_mma", r"min\.f32(\s+%f\d+), (%f\d+), %f\d+;", r"mov.f32\1, \2;"),
    "not saturated at 0": change("dense_mma", r"max\.f32(\s+%f\d+), (%f\d+), %f\d+;", r"mov.f32\1, \2;"),
    "saturated at 254": change("", r"0f437F0000", "0f437E0000"),
    "scales of the neighbour": change("dense_mma", r"(ld\.global\.nc\.f32\s+%f\d+, \[%rd\d+\+)4\]", r"\g<1>8]"),
    "biases of the neighbour": change("dense_mma", r"(ld\.global\.nc\.u32\s+%r\d+, \[%rd\d+\+)4\]", r"\g<1>8]"),
    "zero point subtracted": change("depthwise", r"add\.rn\.f32", "sub.rn.f32"),
    "biases left out": change(
        "dense_mma", r"add\.s32(\s+%r\d+), (%r\d+), (%r\d+);(\s+cvt\.rn\.f32\.s32)", r"mov.u32\1, \2;\4"
    ),
    "the other term of a sum left out": change(
        "dense_mma", r"fma\.rn\.f32(\s+%f\d+), %f\d+, %f\d+, (%f\d+);", r"mov.f32\1, \2;"
    ),
    # borders
    "a border of another code": change("border", r"ld\.global\.nc\.u8(\s+%rs\d+), \[%rd3\];", r"mov.u16\1, 0;"),
    "a border one pixel wider": change("border", r"setp\.lt\.s32(\s+%p\d+, %r\d+), 7;", r"setp.lt.s32\1, 6;"),
    "a column of what is padded left out": change("pad", r"setp\.gt\.u32(\s+%p\d+, %r\d+), 20;", r"setp.gt.u32\1, 19;"),
    # means
    "a row of the mean left out": change(
        "mean", r"add\.(s32|f32|rn\.f32)(\s+%[rf]\d+), (%[rf]\d+), %[rf]\d+;", r"mov.b32\2, \3;", 1
    ),
}
