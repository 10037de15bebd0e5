/* A libnvidia-ml.so.1 for machines without one: the part that supervisor/devices/nvml_child.py asks, answering what the
 * file named by $FAKE_NVML says (tests/fakes/nvml.py writes it). The file is read at each nvmlInit, so a test can change
 * what is free between two surveys. Signatures and numbers are those of NVIDIA's nvml.h.
 *
 * A line is a word and its values; `device` begins a device and `slice` a slice of the last one. A value `!N` is the
 * error N in place of an answer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, UNKNOWN = 999 };
enum { MOST = 32 };

struct process { unsigned pid; unsigned long long bytes; };
struct thing {
    char uuid[96], pci[32], name[96];
    unsigned long long total, free, bar1;
    int memory_error, bar1_error, mig_error, process_error, handle_error;
    unsigned mig;
    unsigned processes, slices;
    struct process process[MOST];
    struct thing *slice[MOST];
};

static struct thing things[MOST * 4];
static unsigned used, devices;
static struct thing *device[MOST];
static char driver[80];
static int init_error, count_error;

static int error_of(const char *word) { return word[0] == '!' ? atoi(word + 1) : 0; }

static struct thing *fresh(void) {
    struct thing *one = &things[used++];
    memset(one, 0, sizeof *one);
    one->bar1_error = one->mig_error = NOT_SUPPORTED;
    one->memory_error = UNKNOWN;
    return one;
}

static void understand(char *line) {
    static struct thing *now;
    char word[32] = "", a[96] = "", b[96] = "";
    sscanf(line, "%31s %95s %95s", word, a, b);
    if (!strcmp(word, "init")) init_error = error_of(a);
    else if (!strcmp(word, "hang")) for (;;) pause();
    else if (!strcmp(word, "count")) count_error = error_of(a);
    else if (!strcmp(word, "driver")) strcpy(driver, a);
    else if (!strcmp(word, "device")) { now = device[devices++] = fresh(); strcpy(now->uuid, a); strcpy(now->pci, b); }
    else if (!strcmp(word, "slice")) {
        struct thing *parent = device[devices - 1];
        now = parent->slice[parent->slices++] = fresh();
        strcpy(now->uuid, a);
        strcpy(now->pci, parent->pci);
        strcpy(now->name, parent->name);
    }
    else if (!strcmp(word, "handle")) now->handle_error = error_of(a);
    else if (!strcmp(word, "name")) { snprintf(now->name, sizeof now->name, "%.*s", (int)strcspn(line + 5, "\n"), line + 5); }
    else if (!strcmp(word, "memory")) {
        now->memory_error = error_of(a);
        now->total = strtoull(a, NULL, 10);
        now->free = strtoull(b, NULL, 10);
    }
    else if (!strcmp(word, "bar1")) { now->bar1_error = error_of(a); now->bar1 = strtoull(a, NULL, 10); }
    else if (!strcmp(word, "mig")) { now->mig_error = error_of(a); now->mig = (unsigned)atoi(a); }
    else if (!strcmp(word, "process")) {
        if (error_of(a)) { now->process_error = error_of(a); return; }
        struct process *one = &now->process[now->processes++];
        one->pid = (unsigned)strtoul(a, NULL, 10);
        one->bytes = b[0] == '-' ? ~0ULL : strtoull(b, NULL, 10);  /* NVML_VALUE_NOT_AVAILABLE */
    }
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    char line[512];
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return UNKNOWN;
    used = devices = 0;
    init_error = count_error = 0;
    while (fgets(line, sizeof line, file)) understand(line);
    fclose(file);
    return init_error;
}

/* Who does not shut down is seen by what stays of this file. */
int nvmlShutdown(void) {
    const char *path = getenv("FAKE_NVML_SHUTDOWN");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) { fputs("shutdown\n", file); fclose(file); }
    return SUCCESS;
}

const char *nvmlErrorString(int result) { (void)result; return "as the fake was told"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "%s", driver); return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = devices; return count_error; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct thing **handle) {
    if (index >= devices) return INVALID_ARGUMENT;
    *handle = device[index];
    return device[index]->handle_error;
}

int nvmlDeviceGetMemoryInfo(struct thing *one, unsigned long long memory[3]) {
    memory[0] = one->total; memory[1] = one->free; memory[2] = one->total - one->free;
    return one->memory_error;
}

int nvmlDeviceGetBAR1MemoryInfo(struct thing *one, unsigned long long memory[3]) {
    memory[0] = memory[1] = one->bar1; memory[2] = 0;
    return one->bar1_error;
}

int nvmlDeviceGetMigMode(struct thing *one, unsigned *now, unsigned *pending) {
    *now = *pending = one->mig;
    return one->mig_error;
}

int nvmlDeviceGetMaxMigDeviceCount(struct thing *one, unsigned *count) { (void)one; *count = 7; return SUCCESS; }

int nvmlDeviceGetMigDeviceHandleByIndex(struct thing *one, unsigned index, struct thing **handle) {
    if (index >= one->slices) return NOT_FOUND;
    *handle = one->slice[index];
    return one->slice[index]->handle_error;
}

int nvmlDeviceGetUUID(struct thing *one, char *text, unsigned size) { snprintf(text, size, "%s", one->uuid); return SUCCESS; }

int nvmlDeviceGetName(struct thing *one, char *text, unsigned size) { snprintf(text, size, "%s", one->name); return SUCCESS; }

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(struct thing *one, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    strcpy(pci->bus_id, one->pci);
    return SUCCESS;
}

struct listed { unsigned pid; unsigned long long bytes; unsigned instance, compute; };

int nvmlDeviceGetComputeRunningProcesses_v3(struct thing *one, unsigned *count, struct listed *list) {
    if (one->process_error) return one->process_error;
    unsigned room = *count;
    *count = one->processes;
    if (room < one->processes || (one->processes && !list)) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < one->processes; i++)
        list[i] = (struct listed){one->process[i].pid, one->process[i].bytes, ~0U, ~0U};
    return SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(struct thing *one, unsigned *count, struct listed *list) {
    (void)list;
    *count = 0;
    return one->process_error;
}
