"""Products of warpgroups in the emulator: layouts against the tables of the PTX ISA, and what must not be changed."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import warpgroup_tables as tables
from emulated import Emulated, aligned, kernel

from ptqc.codegen.cuda.emulator import building
from ptqc.codegen.cuda.emulator.ptx import NotEmulated
from ptqc.codegen.cuda.emulator.translation import translated

pytestmark = pytest.mark.skipif(bool(building.refusal()), reason=str(building.refusal()))

THREADS, ROOM, ORDERS = 128, 32768, (0, 1, 2)
# Arrays: an image of shared memory, fragments of a, descriptors (without the address), sums before and behind.
LOADED = f"""
    .shared .align 1024 .b8 room[{ROOM}];
    .reg .b32 %d<128>;
    .reg .pred ps;
    mov.u32 %r1, room;
    shl.b32 %r2, %r0, 4;
    add.u32 %r3, %r1, %r2;
    mad.wide.u32 %q5, %r0, 16, %q0;
    mov.u32 %r4, 0;
FILL:
    ld.global.v4.u32 {{%r5, %r6, %r7, %r8}}, [%q5];
    st.shared.v4.u32 [%r3], {{%r5, %r6, %r7, %r8}};
    add.u32 %r3, %r3, {16 * THREADS};
    add.u64 %q5, %q5, {16 * THREADS};
    add.u32 %r4, %r4, {16 * THREADS};
    setp.lt.u32 %p1, %r4, {ROOM};
    @%p1 bra FILL;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    mad.wide.u32 %q5, %r0, 16, %q1;
    ld.global.v4.u32 {{%r5, %r6, %r7, %r8}}, [%q5];
    ld.global.u64 %q6, [%q2];
    shr.u32 %r9, %r1, 4;
    cvt.u64.u32 %q7, %r9;
    add.u64 %q6, %q6, %q7;
    setp.eq.u32 ps, 0, 0;
"""


def sums(columns: int) -> str:
    return "{" + ", ".join(f"%d{i}" for i in range(columns // 2)) + "}"


def multiply(columns: int, types: str = "s8.u8", left: str = "{%r5, %r6, %r7, %r8}", adds: str = "ps") -> str:
    return f"wgmma.mma_async.sync.aligned.m64n{columns}k32.s32.{types} {sums(columns)}, {left}, %q6, {adds};"


FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"


def moved(columns: int, what: str) -> str:
    """Sums loaded from the fourth array, or stored to the fifth."""
    array = "%q3" if what == "ld" else "%q4"
    lines = [f"mad.wide.u32 %q5, %r0, {columns * 2}, {array};"]
    for i in range(columns // 2):
        place = f"[%q5+{4 * i}]"
        lines.append(f"ld.global.u32 %d{i}, {place};" if what == "ld" else f"st.global.u32 {place}, %d{i};")
    return "\n".join(lines)


def body(columns: int, *steps: str) -> str:
    return "\n".join([LOADED, moved(columns, "ld"), *steps, moved(columns, "st")])


PLAIN = (FENCE, multiply(8), COMMIT, WAIT)
# All warps but the first come later.
SLOW = f"setp.lt.u32 %p2, %r0, 32; @%p2 bra FAST; {'bar.warp.sync 0xffffffff; ' * 20} FAST: shl.b32"
CHANGED = "add.u32 %r6, %r6, 1;"
KERNELS = {
    **{f"columns_{n}": body(n, FENCE, multiply(n), COMMIT, WAIT) for n in (8, 48, 256)},
    "unsigned": body(8, FENCE, multiply(8, "u8.s8"), COMMIT, WAIT),
    "from_zero": body(8, FENCE, "setp.eq.u32 ps, 0, 1;", multiply(8), COMMIT, WAIT),
    "twice": body(8, FENCE, multiply(8), multiply(8), COMMIT, WAIT),
    "in_two_groups": body(8, FENCE, multiply(8), COMMIT, multiply(8), COMMIT, WAIT),
    "one_left": body(8, FENCE, multiply(8), COMMIT, multiply(8), COMMIT, "wgmma.wait_group.sync.aligned 1;",
                     "mov.u32 %r10, %d0;", WAIT, "mov.u32 %d0, %r10;"),
    "too_early": body(8, FENCE, multiply(8), COMMIT, "mov.u32 %r10, %d0;", WAIT, "mov.u32 %d0, %r10;"),
    "no_proxy_fence": body(8, *PLAIN).replace("fence.proxy.async.shared::cta;", ""),
    "fence_before_store": body(8, *PLAIN).replace("fence.proxy.async.shared::cta;", "").replace(
        "mov.u32 %r4, 0;", "mov.u32 %r4, 0; fence.proxy.async.shared::cta;"),
    "slow_warps": body(48, FENCE, multiply(48), COMMIT, WAIT).replace("    shl.b32", SLOW),
    "no_barrier": body(48, FENCE, multiply(48), COMMIT, WAIT).replace("    shl.b32", SLOW).replace("bar.sync 0;", ""),
    "copied": body(8, *PLAIN).replace("    fence.proxy", "    add.u32 %r3, %r1, %r2; mad.wide.u32 %q5, %r0, 16, %q0;"
                                      "cp.async.cg.shared.global [%r3], [%q5], 16; cp.async.wait_all; fence.proxy"),
    "copied_behind": body(8, *PLAIN).replace("fence.proxy.async.shared::cta;", "").replace(
        "    bar.sync", "    add.u32 %r3, %r1, %r2; mad.wide.u32 %q5, %r0, 16, %q0;"
        "cp.async.cg.shared.global [%r3], [%q5], 16; fence.proxy.async.shared::cta; cp.async.wait_all; bar.sync"),
    "no_fence": body(8, *PLAIN[1:]),
    "changed_behind_fence": body(8, FENCE, CHANGED, *PLAIN[1:]),
    "sum_changed_behind_fence": body(8, FENCE, "add.u32 %d1, %d1, 1;", *PLAIN[1:]),
    "no_commit": body(8, FENCE, multiply(8), WAIT),
    "no_wait": body(8, *PLAIN[:3]),
    "left_changed": body(8, *PLAIN[:3], CHANGED, WAIT),
    "left_changed_and_fenced": body(8, *PLAIN[:3], CHANGED, FENCE, WAIT),
    "sum_changed": body(8, *PLAIN[:3], "mov.u32 %d1, 7;", WAIT),
    "right_changed": body(8, *PLAIN[:3], "st.shared.u32 [%r1+16], %r0;", WAIT),
    "right_copied": body(8, *PLAIN[:3], "cp.async.cg.shared.global [%r1], [%q0+64], 16; cp.async.wait_all;", WAIT),
    "parted": body(8, FENCE, "setp.lt.u32 %p2, %r0, 32; @%p2 bra OTHER;", multiply(8), "bra.uni BEHIND; OTHER:",
                   multiply(8), "BEHIND:", COMMIT, WAIT),
    "one_warp_less": body(8, FENCE, "setp.lt.u32 %p2, %r0, 32; @%p2 bra BEHIND;", multiply(8), COMMIT, "BEHIND:", WAIT),
    "other_descriptor": body(8, FENCE, "setp.lt.u32 %p2, %r0, 32; @%p2 add.u64 %q6, %q6, 2;", *PLAIN[1:]),
    "trap": "trap;",
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    texts = [kernel(name, text, 5) for name, text in KERNELS.items()]
    return Emulated(texts, tmp_path_factory.mktemp("emulated"))


def drawn(columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a (64, 32) and b (32, columns) of int8 and uint8, c of int32."""
    random = np.random.default_rng(seed)
    a = random.integers(-128, 128, (64, 32)).astype(np.int8)
    b = random.integers(0, 256, (32, columns)).astype(np.uint8)
    return a, b, random.integers(-(2**31), 2**31, (64, columns)).astype(np.int32)


def fragments(matrix: np.ndarray, place: Callable[[int, int], tuple[int, int]], count: int) -> np.ndarray:
    result = [[matrix[place(thread, i)] for i in range(count)] for thread in range(THREADS)]
    return aligned(np.array(result, matrix.dtype))


def image(b: np.ndarray, mode: int, leading: int, stride: int, start: int) -> np.ndarray:
    """Shared memory with a matrix. start: where it begins: at a pattern, or along the sum within one."""
    room = np.random.default_rng(1).integers(0, 256, ROOM).astype(np.uint8)
    for column in range(b.shape[1]):
        for k in range(32):
            room[place(mode, column, k, leading, stride, start)] = b[k, column]
    return aligned(room)


def place(mode: int, column: int, k: int, leading: int, stride: int, start: int) -> int:
    """Along the sum within a pattern, a matrix begins at a later piece of each row."""
    width = tables.WIDTHS[mode]
    along = start % (8 * width) if mode else 0
    return start - along + tables.place_in_shared(mode, column, along + k, leading, stride)


def run(built: Emulated, name: str, columns: int = 8, start: int = 0, order: int = 1, **matrix: int) -> np.ndarray:
    """What a kernel stores."""
    a, b, c = drawn(columns)
    text, result = problem(built, name, a, b, c, start, order, **{"mode": 2, "leading": 16, "stride": 512, **matrix})
    assert text == ""
    return result


def problem(
    built: Emulated, name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, start: int, order: int, **matrix: int
) -> tuple[str, np.ndarray]:
    """What is wrong, and what a kernel stores."""
    columns = b.shape[1]
    bits = aligned(np.array([tables.descriptor(**matrix) + (start >> 4)], np.uint64))
    result = aligned(np.zeros((THREADS, columns // 2), np.int32))
    arguments = (image(b, start=start, **matrix), fragments(a, tables.place_of_a, 16), bits)
    text = built(name, *arguments, fragments(c, tables.place_of_d, columns // 2), result, threads=THREADS, order=order)
    return text, result


def wanted(columns: int = 8, times: int = 1, kept: int = 1) -> np.ndarray:
    """Products and what was there before, as threads have them."""
    a, b, c = drawn(columns)
    total = (times * (a.astype(np.int64) @ b.astype(np.int64)) + kept * c.astype(np.int64)).astype(np.int32)
    return fragments(total, tables.place_of_d, columns // 2)


@pytest.mark.long
@pytest.mark.parametrize("columns", [8, 48, 256])
def test_fragments_lie_as_the_tables_say(columns: int, built: Emulated) -> None:
    np.testing.assert_array_equal(run(built, f"columns_{columns}", columns), wanted(columns))


@pytest.mark.parametrize(
    ("mode", "leading", "stride", "starts"),
    [
        (0, 128, 256, (0, 256)),
        (0, 4096, 128, (0, 1040)),
        (1, 16, 1024, (0, 32, 64, 96, 2048)),
        (1, 16, 2048, (1024 + 64,)),
        (2, 16, 512, (0, 32, 512, 1536 + 32)),
        (3, 16, 256, (0, 256, 768)),
    ],
)
def test_a_matrix_lies_in_shared_memory_as_its_descriptor_says(
    mode: int, leading: int, stride: int, starts: tuple[int, ...], built: Emulated
) -> None:
    for start in starts:
        result = run(built, "columns_48", 48, start, mode=mode, leading=leading, stride=stride)
        np.testing.assert_array_equal(result, wanted(48))


def test_either_side_may_have_a_sign(built: Emulated) -> None:
    a, b, c = drawn(8)
    text, result = problem(built, "unsigned", a, b, c, 0, 2, mode=2, leading=16, stride=512)
    assert text == ""
    total = (a.view(np.uint8).astype(np.int64) @ b.view(np.int8).astype(np.int64) + c).astype(np.int32)
    np.testing.assert_array_equal(result, fragments(total, tables.place_of_d, 4))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("name", "times", "kept"), [("twice", 2, 1), ("in_two_groups", 2, 1), ("from_zero", 1, 0)])
def test_products_follow_each_other(name: str, times: int, kept: int, order: int, built: Emulated) -> None:
    np.testing.assert_array_equal(run(built, name, order=order), wanted(8, times, kept))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["too_early", "one_left"])
def test_sums_are_garbage_until_all_products_that_change_them_were_waited_for(
    name: str, order: int, built: Emulated
) -> None:
    result = run(built, name, order=order)
    complete = wanted(8, 2 if name == "one_left" else 1)
    assert (result[:, 0] != complete[:, 0]).all()
    np.testing.assert_array_equal(result[:, 1:], complete[:, 1:])


@pytest.mark.parametrize("order", ORDERS)
def test_copies_and_stores_are_seen_behind_a_fence_of_proxies(order: int, built: Emulated) -> None:
    np.testing.assert_array_equal(run(built, "copied", order=order), wanted())
    for name in ("no_proxy_fence", "fence_before_store", "copied_behind"):
        text, result = problem(built, name, *drawn(8), start=0, order=order, mode=2, leading=16, stride=512)
        assert "without fence.proxy.async" in text
        assert (result != wanted()).any()


@pytest.mark.parametrize("order", ORDERS)
def test_warps_do_not_wait_for_what_others_write(order: int, built: Emulated) -> None:
    np.testing.assert_array_equal(run(built, "slow_warps", 48, order=order), wanted(48))
    text, result = problem(built, "no_barrier", *drawn(48), start=0, order=order, mode=2, leading=16, stride=512)
    assert "shared memory was changed" in text
    assert (result != wanted(48)).any()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_fence", r"without wgmma\.fence before it"),
        ("changed_behind_fence", r"changed after the last wgmma\.fence"),
        ("sum_changed_behind_fence", r"changed after the last wgmma\.fence"),
        ("no_commit", "products that it never waited for"),
        ("no_wait", "products that it never waited for"),
        ("left_changed", "a register was changed while a product"),
        ("left_changed_and_fenced", "a register was changed while a product"),
        ("sum_changed", "sums of a product of a warpgroup were changed"),
        ("right_changed", "shared memory was changed while a product"),
        ("right_copied", "shared memory was changed while a product"),
        ("parted", "meet at different instructions"),
        ("one_warp_less", "wait for others that never come|others of its warpgroup wait|ends while"),
        ("other_descriptor", "different matrix descriptors"),
        ("trap", "a trap"),
    ],
)
def test_what_a_gpu_leaves_undefined_ends_the_launch(name: str, said: str, order: int, built: Emulated) -> None:
    text, _ = problem(built, name, *drawn(8), start=0, order=order, mode=2, leading=16, stride=512)
    assert re.search(said, text), text


@pytest.mark.parametrize(
    ("bits", "said"),
    [
        (tables.descriptor(2, 16, 512) + (64 >> 4), "does not begin at a multiple of 512 bytes"),
        (tables.descriptor(1, 16, 1024) + (512 >> 4), "does not begin at a multiple of 1024 bytes"),
        (tables.descriptor(2, 16, 512) + (ROOM >> 4), "beyond the block's shared memory"),
        (tables.descriptor(2, 16, 512) | 1 << 49, "a base offset"),
        (tables.descriptor(2, 16, 512) | 1 << 14, "bits that mean nothing"),
        (tables.descriptor(2, 16, 512) | 1 << 61, "bits that mean nothing"),
    ],
)
def test_a_descriptor_has_to_make_sense(bits: int, said: str, built: Emulated) -> None:
    a, b, c = drawn(8)
    arguments = image(b, 2, 16, 512, 0), fragments(a, tables.place_of_a, 16), aligned(np.array([bits], np.uint64))
    text = built("columns_8", *arguments, fragments(c, tables.place_of_d, 4), aligned(np.zeros((THREADS, 4), np.int32)),
                 threads=THREADS)  # fmt: skip
    assert said in text


def test_a_warpgroup_has_four_whole_warps(built: Emulated) -> None:
    arrays = [aligned(np.zeros(ROOM, np.uint8)) for _ in range(5)]
    assert "fewer than 128 threads" in built("columns_8", *arrays, threads=96)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (multiply(8).replace("{%r5, %r6, %r7, %r8}", "%q6"), "a left matrix in shared memory"),
        (multiply(40), "40 columns"),
        (multiply(8).replace("s32.s8.u8", "s32.s8.u8.satfinite"), "does not know the instruction"),
    ],
)
def test_other_products_are_told_by_name(statement: str, said: str) -> None:
    with pytest.raises(NotEmulated, match=said):
        translated(kernel("other", body(40, FENCE, statement, COMMIT, WAIT), 5))
