/* What the threads of one call share: each does one task after the other until none is left. */
typedef struct {
    void (*task)(const void *given, size_t index);
    const void *given;
    size_t tasks;
    atomic_size_t next;
    fenv_t rounding;
} Work;

/* With the rounding of the thread that asked: another may have been told to take denormal numbers for zero, and a record
 * that two threads computed in two ways would be measured as one thing and added as another. */
static void go_on(void *shared) {
    Work *work = shared;
    fenv_t own;
    fegetenv(&own);
    fesetenv(&work->rounding);
    for (size_t i; (i = atomic_fetch_add(&work->next, 1)) < work->tasks;) work->task(work->given, i);
    fesetenv(&own);
}

typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);

/* How PyTorch starts its threads, where it is known. */
static Parallel pytorch(void) {
    void *found = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    Parallel parallel = NULL;
    memcpy(&parallel, &found, sizeof(found));
    return parallel;
}

/* By as many threads of PyTorch's own, or by this one: others would compete with those, which go on looking for work for
 * a while after each operation. */
static void in_parallel(void (*task)(const void *, size_t), const void *given, size_t tasks, size_t threads) {
    Parallel parallel = threads > 1 && tasks > 1 ? pytorch() : NULL;
    Work work = {.task = task, .given = given, .tasks = tasks};
    fegetenv(&work.rounding);
    if (parallel)
        parallel(go_on, &work, (unsigned)(threads < tasks ? threads : tasks), 0);
    else
        go_on(&work);
}

static void flush_one(void *found) {
    volatile float smallest = 0x1p-126f, half = smallest * 0.5f; /* a result, and then a factor, that is denormal */
    if (half * 2.0f == 0.0f) atomic_store((atomic_int *)found, 1);
}

/* Whether one of so many threads takes denormal numbers for zero; -1 where they cannot be asked. */
static int flushing(size_t threads) {
    Parallel parallel = threads > 1 ? pytorch() : NULL;
    atomic_int found = 0;
    if (threads > 1 && !parallel) return -1;
    if (parallel)
        parallel(flush_one, &found, (unsigned)threads, 0);
    else
        flush_one(&found);
    return atomic_load(&found);
}
