// What all static libraries have in common. The generated code around it gives the names in capitals (MODEL and so on),
// and a list of kernel calls for each instruction set.

// Aligned as vectors and lines of the cache are.
enum { ALIGNMENT = 64 };

// x86-64: a bit of a register (0: eax … 3: edx) after cpuid with a leaf and a subleaf. Arm: a bit of an entry (leaf) of
// the auxiliary vector.
struct feature {
  uint32_t leaf, subleaf, word, bit;
};

struct instruction_set {
  const char *name;
  const struct feature *features;
  size_t feature_count;
  uint64_t states;            // registers that the system has to save, as bits of XCR0
  size_t constants, scratch;  // bytes: of unpacked constants, of unpacking them
  size_t (*workspace)(const int64_t *lengths);  // bytes: of a run for one sample
  int (*prepare)(const uint8_t *weights, uint8_t *constants, uint8_t *scratch);
  int (*run)(const uint8_t *weights, const uint8_t *constants, uint8_t *workspace, int64_t samples,
             const int64_t *lengths, const void *const *inputs, void *const *outputs);
};

static const struct instruction_set *known_sets(size_t *count);  // the best first
static int are_allowed(const int64_t *lengths);

#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define WHOLE(bytes) (((bytes) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT)

struct MODEL {
  const struct instruction_set *set;
  const uint8_t *weights;
  uint8_t *constants;
  void *copy;  // of the weights, where they were not aligned
  int threads;
};

static void *aligned(size_t bytes) {
  void *result = NULL;
  return posix_memalign(&result, ALIGNMENT, bytes ? bytes : 1) == 0 ? result : NULL;
}

// Kernels call what these point to for temporaries that are too large for the stack.
static void *kernel_memory(int kind, int device, uint64_t bytes, int type, int bits) {
  (void)kind, (void)device, (void)type, (void)bits;
  return aligned((size_t)bytes);
}

static int free_kernel_memory(int kind, int device, void *memory) {
  (void)kind, (void)device;
  free(memory);
  return 0;
}

void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = kernel_memory;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = free_kernel_memory;

// In threads.cpp: how many threads the calling thread's loops use from now on.
int ptqc_use_threads(int count);

#if defined(__x86_64__)
static uint64_t saved_states(void) {
  uint32_t registers[4], low, high;
  if (!__get_cpuid(1, &registers[0], &registers[1], &registers[2], &registers[3])) return 0;
  if (!(registers[2] >> 27 & 1)) return 0;  // OSXSAVE
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

static int has(const struct feature *wanted) {
  uint32_t registers[4];
  if (!__get_cpuid_count(wanted->leaf, wanted->subleaf, &registers[0], &registers[1], &registers[2], &registers[3]))
    return 0;
  return registers[wanted->word] >> wanted->bit & 1;
}

// Linux lends the tile registers of AMX to processes that ask for them once.
static int may_use(uint64_t states) {
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
  if ((saved_states() & states) != states) return 0;
  return !(states >> XTILEDATA & 1) || syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}
#else
static int has(const struct feature *wanted) { return getauxval(wanted->leaf) >> wanted->bit & 1; }

static int may_use(uint64_t states) { return states == 0; }
#endif

static int runs_here(const struct instruction_set *set) {
  for (size_t i = 0; i < set->feature_count; ++i)
    if (!has(&set->features[i])) return 0;
  return may_use(set->states);
}

static const struct instruction_set *chosen(const char *name) {
  size_t count;
  const struct instruction_set *set = known_sets(&count);
  for (; count > 0; ++set, --count)
    if ((name == NULL || strcmp(name, set->name) == 0) && runs_here(set)) return set;
  return NULL;
}

static uint32_t checksum(const uint8_t *data, size_t size) {  // CRC-32
  uint32_t table[256], sum = 0xFFFFFFFF;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xEDB88320 : 0);
    table[byte] = value;
  }
  for (size_t i = 0; i < size; ++i) sum = table[(sum ^ data[i]) & 0xFF] ^ sum >> 8;
  return ~sum;
}

static void release(struct MODEL *model) {
  if (model == NULL) return;
  free(model->copy);
  free(model->constants);
  free(model);
}

static int prepare(struct MODEL *model, const void *weights) {
  const struct instruction_set *set = model->set;
  model->weights = (const uint8_t *)weights;
  if ((uintptr_t)weights % sizeof(uint64_t) != 0) {
    if ((model->copy = aligned(WEIGHTS_BYTES)) == NULL) return STATUS(NO_MEMORY);
    model->weights = (const uint8_t *)memcpy(model->copy, weights, WEIGHTS_BYTES);
  }
  uint8_t *const scratch = (uint8_t *)aligned(set->scratch);
  model->constants = (uint8_t *)aligned(set->constants);
  int status = STATUS(NO_MEMORY);
  if (scratch != NULL && model->constants != NULL)
    status = set->prepare(model->weights, model->constants, scratch) ? STATUS(KERNEL_FAILED) : STATUS(OK);
  free(scratch);
  return status;
}

static int create(struct MODEL **result, const void *weights, size_t bytes, const char *instruction_set, int threads) {
  if (result == NULL) return STATUS(WRONG_ARGUMENT);
  *result = NULL;
  if (weights == NULL || threads < 0) return STATUS(WRONG_ARGUMENT);
  if (bytes != WEIGHTS_BYTES || checksum((const uint8_t *)weights, bytes) != WEIGHTS_CHECKSUM)
    return STATUS(WRONG_WEIGHTS);
  const struct instruction_set *const set = chosen(instruction_set);
  if (set == NULL) return STATUS(NO_INSTRUCTION_SET);
  struct MODEL *const model = (struct MODEL *)calloc(1, sizeof *model);
  if (model == NULL) return STATUS(NO_MEMORY);
  model->set = set;
  model->threads = threads;
  const int status = prepare(model, weights);
  if (status == STATUS(OK))
    *result = model;
  else
    release(model);
  return status;
}

// 0 where there cannot be so much memory, or the numbers are wrong.
static size_t workspace_bytes(const struct MODEL *model, int64_t samples, const int64_t *lengths) {
  if (model == NULL || samples < 0 || !are_allowed(lengths)) return 0;
  const size_t each = model->set->workspace(lengths);
  return (uint64_t)samples > (SIZE_MAX - ALIGNMENT) / (each + 1) ? 0 : (size_t)samples * each + ALIGNMENT;
}

static int run(const struct MODEL *model, void *workspace, int64_t samples, const int64_t *lengths,
               const void *const *inputs, void *const *outputs) {
  if (model == NULL || samples < 0 || !are_allowed(lengths)) return STATUS(WRONG_ARGUMENT);
  if (samples == 0) return STATUS(OK);
  for (int i = 0; i < INPUTS; ++i)
    if (inputs[i] == NULL) return STATUS(WRONG_ARGUMENT);
  for (int i = 0; i < OUTPUTS; ++i)
    if (outputs[i] == NULL) return STATUS(WRONG_ARGUMENT);
  const size_t bytes = workspace_bytes(model, samples, lengths);
  void *const own = workspace == NULL && bytes > 0 ? malloc(bytes) : NULL;
  if (bytes == 0 || (workspace == NULL && own == NULL)) return STATUS(NO_MEMORY);
  const uintptr_t start = (uintptr_t)(own != NULL ? own : workspace);
  uint8_t *const first = (uint8_t *)((start + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  int failed = ptqc_use_threads(model->threads);
  if (!failed) failed = model->set->run(model->weights, model->constants, first, samples, lengths, inputs, outputs);
  free(own);
  return failed ? STATUS(KERNEL_FAILED) : STATUS(OK);
}
