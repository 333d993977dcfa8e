"""Threads that wait for each other, memory they share, instructions of a whole warp; and what ends a launch."""

import math
import re
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import sparse_tables
from emulated import Emulated, aligned, kernel

from ptqc.codegen.cuda.emulator import building

pytestmark = pytest.mark.skipif(bool(building.refusal()), reason=str(building.refusal()))

LANES, ORDERS = 32, (0, 1, 2)
# Every thread stores its number in shared memory and reads that of the thread 33 further on.
EXCHANGE = """
    .shared .align 16 .b8 room[512];
    mov.u32 %r1, room;
    shl.b32 %r2, %r0, 2;
    add.u32 %r3, %r1, %r2;
    st.shared.u32 [%r3], %r0;
    {wait}
    add.u32 %r4, %r0, 33;
    and.b32 %r4, %r4, 127;
    shl.b32 %r4, %r4, 2;
    add.u32 %r5, %r1, %r4;
    ld.shared.u32 %r6, [%r5];
    mad.wide.u32 %q1, %r0, 4, %q0;
    st.global.u32 [%q1], %r6;
"""
# 16 bytes for each thread come from global memory and are read by the thread before.
COPY = """
    .shared .align 16 .b8 room[512];
    mov.u32 %r1, room;
    shl.b32 %r2, %r0, 4;
    add.u32 %r3, %r1, %r2;
    mad.wide.u32 %q2, %r0, 16, %q0;
    cp.async.cg.shared.global [%r3], [%q2], 16{taken};
    cp.async.commit_group;
    cp.async.commit_group;
    {wait}
    add.u32 %r4, %r0, 1;
    and.b32 %r4, %r4, 31;
    shl.b32 %r4, %r4, 4;
    add.u32 %r5, %r1, %r4;
    ld.shared.v4.u32 {{%r6, %r7, %r8, %r9}}, [%r5];
    mad.wide.u32 %q3, %r0, 16, %q1;
    st.global.v4.u32 [%q3], {{%r6, %r7, %r8, %r9}};
    cp.async.wait_all;
"""
SHUFFLE = """
    mov.u32 %r1, %laneid;
    mul.lo.u32 %r2, %r1, 10;
    shfl.sync.{how} %r3|%p1, %r2, {by}, {clamp}, 0xffffffff;
    selp.u32 %r4, 1000, 0, %p1;
    add.u32 %r3, %r3, %r4;
    mad.wide.u32 %q1, %r0, 4, %q0;
    st.global.u32 [%q1], %r3;
"""
ODD = "and.b32 %r9, %r0, 1; setp.eq.u32 %p1, %r9, 1;"
# A fragment of 16 or 8 bytes of each thread from one array of four, and the product to the last.
MULTIPLY = """
    mad.wide.u32 %q4, %r0, 16, %q0;
    ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%q4];
    mad.wide.u32 %q4, %r0, 8, %q1;
    ld.global.v2.u32 {%r5, %r6}, [%q4];
    mad.wide.u32 %q4, %r0, 16, %q2;
    ld.global.v4.u32 {%r7, %r8, %r9, %r10}, [%q4];
    mma.sync.aligned.m16n8k32.row.col.s32.TYPES.s32
        {%r11, %r12, %r13, %r14}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%r7, %r8, %r9, %r10};
    mad.wide.u32 %q4, %r0, 16, %q3;
    st.global.v4.u32 [%q4], {%r11, %r12, %r13, %r14};
"""
# The same with a sparse matrix: 16 bytes of each thread from both arrays, and its metadata from the next.
MULTIPLY_SPARSE = """
    mad.wide.u32 %q5, %r0, 16, %q0;
    ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%q5];
    mad.wide.u32 %q5, %r0, 16, %q1;
    ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%q5];
    mad.wide.u32 %q5, %r0, 4, %q2;
    ld.global.u32 %r9, [%q5];
    mad.wide.u32 %q5, %r0, 16, %q3;
    ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%q5];
    mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.TYPES.s32
        {%r14, %r15, %r16, %r17}, {%r1, %r2, %r3, %r4}, {%r5, %r6, %r7, %r8}, {%r10, %r11, %r12, %r13}, %r9, SELECTOR;
    mad.wide.u32 %q5, %r0, 16, %q4;
    st.global.v4.u32 [%q5], {%r14, %r15, %r16, %r17};
"""
# Row r of matrix m lies in line (m + 3 r) % 32 of 16 bytes each, so that rows are found by their addresses alone.
MATRICES = """
    .shared .align 16 .b8 room[512];
    mov.u32 %r1, room;
    shl.b32 %r2, %r0, 4;
    add.u32 %r3, %r1, %r2;
    mad.wide.u32 %q2, %r0, 16, %q0;
    ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%q2];
    st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7};
    bar.sync 0;
    shr.u32 %r8, %r0, 3;
    and.b32 %r9, %r0, 7;
    mad.lo.u32 %r10, %r9, 3, %r8;
    and.b32 %r10, %r10, 31;
    shl.b32 %r10, %r10, 4;
    add.u32 %r11, %r1, %r10;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r12, %r13, %r14, %r15}, [%r11];
    mad.wide.u32 %q2, %r0, 16, %q1;
    st.global.v4.u32 [%q2], {%r12, %r13, %r14, %r15};
"""
KERNELS = {
    "exchange": (EXCHANGE.format(wait="bar.sync 0;"), 1),
    "no_barrier": (EXCHANGE.format(wait=""), 1),
    "copy": (COPY.format(taken="", wait="cp.async.wait_group 1; bar.sync 0;"), 2),
    "copy_part": (COPY.format(taken=", 4", wait="cp.async.wait_all; bar.sync 0;"), 2),
    "copy_late": (COPY.format(taken="", wait="cp.async.wait_group 2; bar.sync 0;"), 2),
    "copy_alone": (COPY.format(taken="", wait="cp.async.wait_group 1;"), 2),
    "copy_left": (COPY.format(taken="", wait="").replace("cp.async.wait_all;", ""), 2),
    "bfly": (SHUFFLE.format(how="bfly.b32", by=5, clamp=0x1F), 1),
    "down": (SHUFFLE.format(how="down.b32", by=8, clamp=0x1F), 1),
    "up": (SHUFFLE.format(how="up.b32", by=3, clamp=0), 1),
    "idx": (SHUFFLE.format(how="idx.b32", by=7, clamp=0x1F), 1),
    "segments": (SHUFFLE.format(how="down.b32", by=2, clamp=0x181F), 1),  # of 8 lanes
    "some_lanes": (SHUFFLE.format(how="idx.b32", by=7, clamp=0x1F).replace("0xffffffff", "0xffff"), 1),
    "deadlock": (f"{ODD} @%p1 bra END; bar.sync 0; END: bar.warp.sync 0xffffffff;", 1),
    "ended": (f"{ODD} @%p1 ret; bar.sync 0;", 1),
    "diverged": (f"{ODD} @%p1 bra END; bar.sync 0; bra.uni OVER; END: bar.sync 0; OVER: mov.u32 %r1, 0;", 1),
    "parted": (SHUFFLE.format(how="idx.b32", by=7, clamp=0x1F).replace("shfl", ODD + " @%p1 shfl"), 1),
    "misaligned": ("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%q0+8];", 1),
    "misaligned_shared": (".shared .align 16 .b8 room[64]; mov.u32 %r1, room; st.shared.u32 [%r1+2], %r0;", 1),
    "beyond": (".shared .align 16 .b8 room[64]; mov.u32 %r1, room; st.shared.u32 [%r1+64], %r0;", 1),
    "misaligned_copy": (COPY.format(taken="", wait="").replace("[%q2], 16", "[%q2+4], 16"), 2),
    "misaligned_rows": (MATRICES.replace("add.u32 %r11, %r1, %r10;", "add.u32 %r11, %r1, 8;"), 2),
    "matrices": (MATRICES, 2),
    "bytes": (MULTIPLY.replace("TYPES", "u8.s8"), 4),
    "signed_bytes": (MULTIPLY.replace("TYPES", "s8.s8"), 4),
    "halves": (MULTIPLY.replace("m16n8k32.row.col.s32.TYPES.s32", "m16n8k16.row.col.f32.f16.f16.f32"), 4),
    "float8": (MULTIPLY.replace("s32.TYPES.s32", "f32.e4m3.e4m3.f32"), 4),
    "sparse": (MULTIPLY_SPARSE.replace("TYPES", "s8.u8").replace("SELECTOR", "0"), 5),
    "selected": (MULTIPLY_SPARSE.replace("TYPES", "s8.u8").replace("SELECTOR", "1"), 5),
    "table": ("mov.u64 %q1, squares; cvta.global.u64 %q1, %q1; and.b32 %r1, %r0, 3; mad.wide.u32 %q1, %r1, 1, %q1;"
              "ld.global.u8 %r2, [%q1]; mad.wide.u32 %q2, %r0, 4, %q0; st.global.u32 [%q2], %r2;", 1),
    "blocks": ("mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0;"
               "mad.wide.u32 %q1, %r3, 4, %q0; st.global.u32 [%q1], %r3;", 1),
    "local": (".local .align 8 .b8 mine[8]; .reg .b64 %at; mov.u64 %at, mine; cvta.local.u64 %at, %at;"
              "st.local.u32 [%at+4], %r0; ld.u32 %r1, [%at+4];"
              "mad.wide.u32 %q1, %r0, 4, %q0; st.global.u32 [%q1], %r1;", 1),
    "generic": (".shared .align 16 .b8 room[128]; .reg .b64 %at; mov.u64 %at, room; cvta.shared.u64 %at, %at;"
                "mad.wide.u32 %at, %r0, 4, %at; st.u32 [%at], %r0; cvta.to.shared.u64 %at, %at;"
                "ld.shared.u32 %r1, [%at]; mad.wide.u32 %q1, %r0, 4, %q0; st.global.u32 [%q1], %r1;", 1),
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    texts = [kernel(name, body, pointers) for name, (body, pointers) in KERNELS.items()]
    return Emulated([".global .align 4 .b8 squares[4] = {0, 1, 4, 9};", *texts], tmp_path_factory.mktemp("emulated"))


def numbers(count: int) -> np.ndarray:
    return aligned(np.zeros(count, np.uint32))


@pytest.mark.long
@pytest.mark.parametrize("order", ORDERS)
def test_threads_meet_at_a_barrier(order: int, built: Emulated) -> None:
    result = numbers(128)
    assert built("exchange", result, threads=128, order=order) == ""
    np.testing.assert_array_equal(result, (np.arange(128) + 33) % 128)


@pytest.mark.parametrize("order", ORDERS)
def test_a_barrier_left_out_gives_something_else(order: int, built: Emulated) -> None:
    result = numbers(128)
    assert built("no_barrier", result, threads=128, order=order) == ""
    assert (result != (np.arange(128) + 33) % 128).any()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("name", "is_right"), [("copy", True), ("copy_late", False), ("copy_alone", False)])
def test_a_copy_lands_when_its_thread_waits(name: str, is_right: bool, order: int, built: Emulated) -> None:
    value, result = aligned(np.arange(128, dtype=np.uint32)), numbers(128)
    assert built(name, value, result, order=order) == ""
    assert np.array_equal(result.reshape(32, 4), np.roll(value.reshape(32, 4), -1, 0)) == is_right


def test_what_a_copy_does_not_take_becomes_zero(built: Emulated) -> None:
    value, result = aligned(np.arange(128, dtype=np.uint32) + 1), numbers(128)
    assert built("copy_part", value, result) == ""
    np.testing.assert_array_equal(result.reshape(32, 4), np.roll(value.reshape(32, 4), -1, 0) * np.array([1, 0, 0, 0]))


def sources(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The lane that each lane reads, and whether it is one of its segment, by the words of the PTX ISA."""
    lane = np.arange(LANES)
    result = {"bfly": lane ^ 5, "down": lane + 8, "up": lane - 3, "idx": 7 + 0 * lane, "segments": lane + 2}[name]
    inside = (result >= 0) & (result < LANES)
    if name == "segments":
        inside = result // 8 == lane // 8
    return np.where(inside, result, lane), inside


@pytest.mark.parametrize("name", ["bfly", "down", "up", "idx", "segments"])
def test_a_shuffle_takes_from_another_lane(name: str, built: Emulated) -> None:
    result, (source, inside) = numbers(64), sources(name)
    assert built(name, result, threads=64, order=3) == ""
    np.testing.assert_array_equal(result.reshape(2, LANES), np.tile(source * 10 + inside * 1000, (2, 1)))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deadlock", "threads wait for others that never come"),
        ("ended", "ended|ends while others wait"),
        ("diverged", "lanes of a warp wait at different barriers"),
        ("parted", "ends while others wait for it at an instruction of the warp|wait for others"),
        ("some_lanes", "names not all of its lanes"),
        ("misaligned", "not aligned to 16 bytes"),
        ("misaligned_shared", "not aligned to 4 bytes"),
        ("misaligned_copy", "not aligned to 16 bytes"),
        ("misaligned_rows", "not aligned to 16 bytes"),
        ("beyond", "beyond the block's shared memory"),
        ("copy_left", "copies that it never waited for"),
        ("sparse", "places do not ascend"),
        ("selected", "a selector of metadata that is not 0"),
    ],
)
def test_what_a_gpu_leaves_undefined_ends_the_launch(name: str, expected: str, order: int, built: Emulated) -> None:
    arrays = [numbers(256) for _ in range(KERNELS[name][1])]
    problem = built(name, *arrays, order=order)
    assert re.search(expected, problem), problem
    assert "of block 0, 0, 0" in problem


def test_a_block_with_too_many_threads_is_refused(built: Emulated) -> None:
    assert built("blocks", numbers(4096), threads=2048) == "a block has 1 to 1024 threads"


def test_blocks_know_their_place(built: Emulated) -> None:
    result = numbers(320)
    assert built("blocks", result, threads=64, blocks=5) == ""
    np.testing.assert_array_equal(result, np.arange(320))


def test_a_share_of_the_blocks_is_spread_over_all_and_has_both_ends(built: Emulated) -> None:
    result = [numbers(64 * 100) for _ in range(2)]
    for order, array in enumerate(result):
        assert built("blocks", array, threads=64, blocks=100, share=0.1, order=order) == ""
    ran = [array.reshape(100, 64)[:, 1] != 0 for array in result]
    for blocks in ran:
        assert (blocks[0], blocks[-1]) == (True, True)
        assert (blocks.reshape(10, 10).sum(1) == 1).all()
    assert (ran[0] != ran[1]).any()


@pytest.mark.parametrize(("share", "others"), [(1.0, 0), (0.5, 50), (0.1, 90)])
def test_what_the_blocks_left_out_could_store_is_told(share: float, others: int, built: Emulated) -> None:
    """A block stores a number for each of its threads."""
    assert built("blocks", numbers(64 * 100), threads=64, blocks=100, share=share) == ""
    assert built.left_out == others * 64 * 4


def test_a_table_of_the_module_is_read(built: Emulated) -> None:
    result = numbers(LANES)
    assert built("table", result) == ""
    np.testing.assert_array_equal(result, (np.arange(LANES) % 4) ** 2)


@pytest.mark.parametrize("name", ["local", "generic"])
def test_memory_of_a_thread_and_generic_addresses(name: str, built: Emulated) -> None:
    result = numbers(LANES)
    assert built(name, result) == ""
    np.testing.assert_array_equal(result, np.arange(LANES))


def test_rows_of_matrices_go_to_groups_of_four_lanes(built: Emulated) -> None:
    """PTX ISA, ldmatrix: lane T gets, of each matrix, elements 2·(T % 4) and the next of row T / 4, of 16 bits each."""
    lines = aligned(np.random.default_rng(0).integers(0, 2**16, (LANES, 8)).astype(np.uint16))
    result = aligned(np.zeros((LANES, 4, 2), np.uint16))
    assert built("matrices", lines, result, order=1) == ""
    for lane in range(LANES):
        for matrix in range(4):
            row = lines[(matrix + 3 * (lane // 4)) % 32]
            np.testing.assert_array_equal(result[lane, matrix], row[lane % 4 * 2 : lane % 4 * 2 + 2])


def place_of_a(lane: int, i: int) -> tuple[int, int]:
    """PTX ISA, "Matrix fragments for mma.m16n8k32", A of 8 bits: row and column of element i."""
    group, thread = lane >> 2, lane % 4
    row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
    return row, thread * 4 + (i & 3) if i < 8 else thread * 4 + (i & 3) + 16


def place_of_b(lane: int, i: int) -> tuple[int, int]:
    """The same of B."""
    group, thread = lane >> 2, lane % 4
    return thread * 4 + (i & 3) if i < 4 else thread * 4 + (i & 3) + 16, group


def place_of_c(lane: int, i: int) -> tuple[int, int]:
    """The same of C and D."""
    group, thread = lane >> 2, lane % 4
    return group if i < 2 else group + 8, thread * 2 + (i & 1)


def fragments(matrix: np.ndarray, place: Callable[[int, int], tuple[int, int]], count: int) -> np.ndarray:
    return aligned(np.array([[matrix[place(lane, i)] for i in range(count)] for lane in range(LANES)], matrix.dtype))


@pytest.mark.parametrize(("name", "dtype"), [("bytes", np.uint8), ("signed_bytes", np.int8)])
def test_fragments_of_a_product_lie_as_the_tables_say(name: str, dtype: type[np.integer], built: Emulated) -> None:
    random = np.random.default_rng(0)
    ends = np.iinfo(dtype)
    a: np.ndarray = random.integers(ends.min, ends.max + 1, (16, 32)).astype(dtype)
    b, c = (
        random.integers(-128, 128, (32, 8)).astype(np.int8),
        random.integers(-(2**31), 2**31, (16, 8)).astype(np.int32),
    )
    values = fragments(a, place_of_a, 16), fragments(b, place_of_b, 8), fragments(c, place_of_c, 4)
    result = aligned(np.zeros((LANES, 4), np.int32))
    assert built(name, *values, result, order=2) == ""
    wanted = (a.astype(np.int64) @ b.astype(np.int64) + c).astype(np.int32)
    np.testing.assert_array_equal(result, fragments(wanted, place_of_c, 4))


def test_a_sparse_product_takes_the_numbers_at_the_places_that_the_metadata_has(built: Emulated) -> None:
    random = np.random.default_rng(0)
    kept: np.ndarray = random.integers(-128, 128, (16, 32)).astype(np.int8)
    places = np.sort(random.random((16, 16, 4)).argsort(-1)[..., :2], axis=-1)
    a = np.zeros((16, 16, 4), np.int64)
    np.put_along_axis(a, places, kept.reshape(16, 16, 2), -1)
    b, c = random.integers(0, 256, (64, 8)).astype(np.uint8), random.integers(-(2**31), 2**31, (16, 8)).astype(np.int32)
    both, words = places[..., 0] | places[..., 1] << 2, aligned(np.zeros(LANES, np.uint32))
    for lane in range(LANES):
        for bit in range(0, 32, 4):
            words[lane] |= np.uint32(both[sparse_tables.place_of_e(lane, bit)] << bit)
    values = fragments(kept, sparse_tables.place_of_a, 16), fragments(b, sparse_tables.place_of_b, 16), words
    result = aligned(np.zeros((LANES, 4), np.int32))
    assert built("sparse", *values, fragments(c, place_of_c, 4), result, order=2) == ""
    wanted = (a.reshape(16, 64) @ b.astype(np.int64) + c).astype(np.int32)
    np.testing.assert_array_equal(result, fragments(wanted, place_of_c, 4))


def place_of_a_of_halves(lane: int, i: int) -> tuple[int, int]:
    """PTX ISA, "Matrix fragments for mma.m16n8k16", A of float16."""
    group, thread = lane >> 2, lane % 4
    row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
    return row, thread * 2 + (i & 1) if i < 4 else thread * 2 + (i & 1) + 8


def place_of_b_of_halves(lane: int, i: int) -> tuple[int, int]:
    """The same of B."""
    group, thread = lane >> 2, lane % 4
    return thread * 2 + (i & 1) if i < 2 else thread * 2 + (i & 1) + 8, group


def test_fragments_of_a_product_of_float16_lie_as_the_tables_say(built: Emulated) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((16, 16), (16, 8)))
    c = random.standard_normal((16, 8)).astype(np.float32)
    values = fragments(a, place_of_a_of_halves, 8), fragments(b, place_of_b_of_halves, 4), fragments(c, place_of_c, 4)
    result = aligned(np.zeros((LANES, 4), np.float32))
    assert built("halves", *values, result, order=2) == ""
    wanted = (a.astype(np.float64) @ b.astype(np.float64) + c).astype(np.float32)
    np.testing.assert_allclose(result, fragments(wanted, place_of_c, 4), rtol=1e-6)


def of_e4m3(code: int) -> float:
    """OCP 8-bit Floating Point Specification 1.0, table 1: the number that a code stands for."""
    sign, exponent, fraction = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
    if exponent == 15 and fraction == 7:
        return float("nan")
    return sign * (2.0 ** (exponent - 7) * (1 + fraction / 8) if exponent else 2.0**-6 * fraction / 8)


def float8_product(a: np.ndarray, b: np.ndarray, c: np.ndarray, built: Emulated, digits: int = 0) -> np.ndarray:
    """What the instruction gives for codes a (16, 32) and b (32, 8), and c (16, 8) of float32; as lanes have it."""
    values = fragments(a, place_of_a, 16), fragments(b, place_of_b, 8), fragments(c, place_of_c, 4)
    result = aligned(np.zeros((LANES, 4), np.float32))
    assert built("float8", *values, result, order=2, digits=digits) == ""
    return result


def test_every_code_of_fp8_is_the_number_that_ml_dtypes_has(built: Emulated) -> None:
    """Each picked by a 1 in the other matrix; a code that is no number spoils its row alone."""
    every = np.arange(256, dtype=np.uint8)
    numbers = every.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal([of_e4m3(code) for code in every.tolist()], numbers)
    finite = every[np.isfinite(numbers)]
    for codes in (finite[:128], finite[126:]):
        a = np.zeros((16, 32), np.uint8)
        a[:, 5:13] = codes.reshape(16, 8)
        b = np.zeros((32, 8), np.uint8)
        b[5:13] = np.diag(np.full(8, 0x38, np.uint8))
        result = float8_product(a, b, np.zeros((16, 8), np.float32), built)
        np.testing.assert_array_equal(result, fragments(numbers[codes].reshape(16, 8), place_of_c, 4))
    a = np.full((16, 32), 0x38, np.uint8)
    a[3, 20], a[9, 1] = 127, 255
    wanted = np.full((16, 8), 32, np.float32)
    wanted[[3, 9]] = np.nan
    result = float8_product(a, np.full((32, 8), 0x38, np.uint8), np.zeros((16, 8), np.float32), built)
    np.testing.assert_array_equal(result, fragments(wanted, place_of_c, 4))


def drawn_codes(shape: tuple[int, int], seed: int) -> np.ndarray:
    codes = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    return np.where(codes & 127 == 127, np.uint8(0x40), codes)


def test_fragments_of_a_product_of_fp8_lie_as_the_tables_say(built: Emulated) -> None:
    a, b = drawn_codes((16, 32), 0), drawn_codes((32, 8), 1)
    c = np.random.default_rng(2).standard_normal((16, 8)).astype(np.float32) * 1000
    left, right = (np.vectorize(of_e4m3)(codes) for codes in (a, b))
    wanted = (left @ right + c).astype(np.float32)
    np.testing.assert_array_equal(float8_product(a, b, c, built), fragments(wanted, place_of_c, 4))


def cut(value: Fraction, exponent: int, digits: int) -> Fraction:
    """Towards zero, to so many digits behind the point of a number with this exponent."""
    unit = Fraction(2) ** (exponent - digits)
    return int(value / unit) * unit


def cut_product(row: np.ndarray, column: np.ndarray, c: float, digits: int) -> float:
    """Xie et al. 2025, MMA-Sim (arXiv 2511.10909), table of Ada Lovelace: twice 16 products, cut, added and cut again.

    Exponents of products are sums of those of their factors, at least -6 each.
    """
    total = Fraction(c)
    for first in (0, 16):
        pairs = list(zip(row[first : first + 16], column[first : first + 16], strict=True))
        exponents = [sum(max(math.frexp(value)[1] - 1, -6) for value in pair) for pair in pairs if all(pair)]
        top = max([*exponents, *([math.frexp(float(total))[1] - 1] if total else [])])
        terms = [total, *(Fraction(x) * Fraction(w) for x, w in pairs)]
        result = sum(cut(term, top, digits) for term in terms)
        total = cut(result, math.frexp(float(result))[1] - 1, digits) if result else Fraction(0)
    return float(total)


def test_sums_of_fp8_can_be_cut_as_chips_were_measured_to_cut_them(built: Emulated) -> None:
    a, b = drawn_codes((16, 32), 3), drawn_codes((32, 8), 4)
    c = np.random.default_rng(5).standard_normal((16, 8)).astype(np.float32) * 1000
    left, right = (np.vectorize(of_e4m3)(codes) for codes in (a, b))
    wanted = np.array([[cut_product(left[i], right[:, j], float(c[i, j]), 13) for j in range(8)] for i in range(16)])
    result = float8_product(a, b, c, built, digits=13)
    np.testing.assert_array_equal(result, fragments(wanted.astype(np.float32), place_of_c, 4))
    assert (result != float8_product(a, b, c, built)).mean() > 0.5
