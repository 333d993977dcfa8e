/*
 * What a Cortex-M needs to get to main(): a table of vectors, and memory as C expects it. Output goes to the debugger
 * or the emulator by semihosting; a product has a serial port in its place.
 */
#include <stdint.h>

/* Of board.ld. */
extern uint32_t stack_top[], data_load[], data_start[], data_end[], bss_start[], bss_end[];

int main(void);
void print(const char *text);
void reset(void);

enum { SYS_WRITE0 = 0x04, SYS_EXIT = 0x18 };
enum { APPLICATION_EXIT = 0x20026, RUN_TIME_ERROR = 0x20023 };

static void semihosting(uint32_t operation, uint32_t argument) {
  register uint32_t r0 __asm__("r0") = operation;
  register uint32_t r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

void print(const char *text) { semihosting(SYS_WRITE0, (uint32_t)text); }

static void stop(int status) {
  semihosting(SYS_EXIT, status == 0 ? APPLICATION_EXIT : RUN_TIME_ERROR);
  for (;;) {
  }
}

static void fault(void) {
  print("fault\n");
  stop(1);
}

/* The first entry is the stack, the second where the core begins, the next five are for faults. */
__attribute__((section(".vectors"), used)) static const uintptr_t vectors[16] = {
    (uintptr_t)stack_top, (uintptr_t)reset, (uintptr_t)fault, (uintptr_t)fault,
    (uintptr_t)fault,     (uintptr_t)fault, (uintptr_t)fault,
};

void reset(void) {
  volatile uint32_t *const access = (volatile uint32_t *)0xE000ED88u;
  *access |= 0xFu << 20; /* turns the floating-point unit on; a core without one ignores it */
  __asm__ volatile("dsb\n isb" ::: "memory");
  const uint32_t *from = data_load;
  for (volatile uint32_t *to = data_start; to < data_end; ++to) *to = *from++;
  for (volatile uint32_t *to = bss_start; to < bss_end; ++to) *to = 0;
  stop(main());
}
