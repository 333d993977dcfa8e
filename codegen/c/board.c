// Runs a network on an emulated microcontroller: start-up, samples and results by semihosting, a count of the
// instructions and of the bytes of stack of every run. Calls no library, so that what is linked of one is the network's.
// The file that includes this one defines BOARD_COUNTERS, BOARD_SAMPLES, the two buffers, and call_network().

#include <stdint.h>

#define PAINT 0xA5C35A3Cu
#define SECONDS (*(volatile uint32_t *)(BOARD_COUNTERS + 0x10u))
#define TICKS (*(volatile uint32_t *)(BOARD_COUNTERS + 0x18u))
#define TICKS_PRESCALE (*(volatile uint32_t *)(BOARD_COUNTERS + 0x1cu))
#define FAULT_STATUS (*(volatile uint32_t *)0xE000ED28u)
#define STACK_OVERFLOW 0x00100000u

enum { SYS_OPEN = 1, SYS_WRITE0 = 4, SYS_WRITE = 5, SYS_READ = 6, SYS_EXIT = 24 };
enum { READ_BINARY = 1, WRITE_BINARY = 5 };
enum { RUN_TIME_ERROR = 0x20023, APPLICATION_EXIT = 0x20026 };

// Of the linker script.
extern uint32_t board_stack_limit[], board_stack_top[];
extern uint32_t board_data_load[], board_data_start[], board_data_end[], board_bss_start[], board_bss_end[];

void board_start(void);
void board_main(void);
static int call_network(void);

static uint32_t semihosting(uint32_t operation, const void *block) {
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void end(uint32_t reason) {
    semihosting(SYS_EXIT, (const void *)reason);
    for (;;) {
    }
}

static void fail(const char *message) {
    semihosting(SYS_WRITE0, message);
    end(RUN_TIME_ERROR);
}

#if __ARM_ARCH < 8
// Cores without a limit of the stack have a megabyte below it that must not be used; else all is as without regions.
static void guard_stack(void) {
    volatile uint32_t *const mpu = (volatile uint32_t *)0xE000ED94u;
    mpu[1] = 0;
    mpu[2] = (uint32_t)board_stack_limit - 0x100000u;
    mpu[3] = 1u << 28 | 19u << 1 | 1u;
    mpu[0] = 5;
    __asm__ volatile("dsb\n isb\n" ::: "memory");
}
#endif

__attribute__((used)) static void explain_fault(const uint32_t *sp) {
    if (sp < board_stack_limit || (FAULT_STATUS & STACK_OVERFLOW) != 0) fail("the stack is too small\n");
    fail("the processor met a fault: an address or an instruction that it does not have\n");
}

__attribute__((naked)) static void fault(void) {
    __asm__ volatile("mov r0, sp\n"
                     "ldr r1, =board_stack_top\n"
                     "mov sp, r1\n"
                     "b explain_fault\n");
}

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    board_stack_top, (void *)board_start, (void *)fault, (void *)fault, (void *)fault, (void *)fault,
    (void *)fault,   (void *)fault,       0,             0,             0,             (void *)fault,
    (void *)fault,   0,                   (void *)fault, (void *)fault,
};

// The FPU, and with it MVE, is off after a reset; a core without one ignores these bits.
__attribute__((naked)) void board_start(void) {
    __asm__ volatile("ldr r0, =0xE000ED88\n"
                     "ldr r1, [r0]\n"
                     "orr r1, r1, #0xf00000\n"
                     "str r1, [r0]\n"
#if __ARM_ARCH >= 8
                     "ldr r0, =board_stack_limit\n"
                     "msr msplim, r0\n"
#endif
                     "dsb\n"
                     "isb\n"
                     "b board_main\n");
}

static uint32_t open_file(const char *name, uint32_t length, uint32_t mode) {
    const uint32_t block[3] = {(uint32_t)name, mode, length};
    const uint32_t handle = semihosting(SYS_OPEN, block);
    if (handle == UINT32_MAX) fail("a file of samples or results cannot be opened\n");
    return handle;
}

static void transfer(uint32_t operation, uint32_t handle, const void *data, uint32_t bytes) {
    const uint32_t block[3] = {handle, (uint32_t)data, bytes};
    if (bytes != 0 && semihosting(operation, block) != 0) fail("samples or results cannot be transferred\n");
}

// Volatile, or the compiler would make a call of memcpy or memset of such a loop.
static void copy_words(volatile uint32_t *to, const uint32_t *limit, const uint32_t *from) {
    while (to < limit) *to++ = *from++;
}

static void fill_words(volatile uint32_t *to, const uint32_t *limit, uint32_t value) {
    while (to < limit) *to++ = value;
}

// Little-endian words, as they are written to the file of results.
typedef struct {
    uint32_t status, seconds, ticks, stack;
} Measured;

static __attribute__((noinline)) int call_nothing(void) {
    __asm__ volatile("");
    return 0;
}

// What stands between the reads of the counters counts as well: a call of nothing tells how much that is.
static __attribute__((noinline)) void measure(int (*call)(void), Measured *result) {
    const uint32_t *sp;
    __asm__ volatile("mov %0, sp" : "=r"(sp));
    fill_words(board_stack_limit, sp, PAINT);
    const uint32_t seconds = SECONDS, ticks = TICKS;
    result->status = (uint32_t)call();
    result->ticks = TICKS - ticks;
    result->seconds = SECONDS - seconds;
    const uint32_t *untouched = board_stack_limit;
    while (untouched < sp && *untouched == PAINT) ++untouched;
    result->stack = 4 * (uint32_t)(sp - untouched);
    if (untouched == board_stack_limit) fail("the stack is too small\n");
}

__attribute__((used)) void board_main(void) {
    // Volatile, so that the network is linked even where it is only asked how large it is.
    volatile uint32_t remaining = BOARD_SAMPLES;
    Measured measured;
    copy_words(board_data_start, board_data_end, board_data_load);
    fill_words(board_bss_start, board_bss_end, 0);
#if __ARM_ARCH < 8
    guard_stack();
#endif
    TICKS_PRESCALE = 0;
    const uint32_t samples = open_file("samples.bin", 11, READ_BINARY);
    const uint32_t results = open_file("results.bin", 11, WRITE_BINARY);
    measure(call_nothing, &measured);
    transfer(SYS_WRITE, results, &measured, sizeof measured);
    for (; remaining != 0; --remaining) {
        transfer(SYS_READ, samples, board_inputs, sizeof board_inputs);
        measure(call_network, &measured);
        transfer(SYS_WRITE, results, &measured, sizeof measured);
        transfer(SYS_WRITE, results, board_outputs, sizeof board_outputs);
    }
    end(APPLICATION_EXIT);
}
