/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Times select_p_job_test inside slurmctld, in the same way for any select plugin.
 *
 * The file is installed under the name of the plugin to be measured. It loads that plugin, takes
 * over what Slurm reads of it, hands every call on, and notes how long job_test took. For tests and
 * benchmarks only.
 *
 *   FOLDER/select_cons_tres.so        measures Slurm's own, found beside libslurmfull.so
 *   FOLDER/select_gpuos.so            measures FOLDER/inner/select_gpuos.so
 *   FOLDER/inner/select_cons_tres.so  is what gpuos finds beside itself: measures the calls that
 *                                     gpuos makes into Slurm's own
 *
 * Records go to log/job_test.samples in the folder above the one of $SLURM_CONF. That file is
 * mapped: noting a sample costs a few stores and no write.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CAPACITY 200000

/* What was called. */
enum { JOB_TEST = 0, NODEINFO_SET = 1, JOB_FINI = 2, INNER_JOB_TEST = 3 };

/* One call, 48 bytes. tests/bench/src/samples.rs reads the same. */
struct sample {
	uint64_t wall_ns;
	uint64_t cpu_ns;
	uint32_t kind;
	uint32_t mode;      /* of job_test, low byte: 0 RUN_NOW, 1 TEST_ONLY, 2 WILL_RUN */
	uint32_t min_nodes; /* of job_test */
	int32_t code;       /* what the plugin answered */
	uint32_t candidates; /* nodes in the bitmap before the call */
	uint32_t chosen;     /* and after it */
	uint64_t at_ns;      /* CLOCK_MONOTONIC at the call */
};

struct file {
	uint64_t magic;
	uint64_t count; /* stored last, so a reader sees whole samples only */
	struct sample samples[CAPACITY];
};

char plugin_name[128];
char plugin_type[64];
uint32_t plugin_version;
/* The first is the id. gpuos write-protects the page of cons_tres's id, so it fills pages of its own. */
uint32_t plugin_id[16384] __attribute__((aligned(65536)));

static void *target;
static int inner;
static struct file *out;
static int32_t (*bit_set_count)(void *);

typedef long (*function)(long, long, long, long, long, long, long, long, long, long);

static void take_over(void)
{
	const char *text;
	const uint32_t *number;

	if ((text = dlsym(target, "plugin_name")))
		snprintf(plugin_name, sizeof(plugin_name), "%s", text);
	if ((text = dlsym(target, "plugin_type")))
		snprintf(plugin_type, sizeof(plugin_type), "%s", text);
	if ((number = dlsym(target, "plugin_version")))
		plugin_version = *number;
	if ((number = dlsym(target, "plugin_id")))
		plugin_id[0] = *number;
}

static int target_path(char *path, size_t size)
{
	Dl_info self, slurm;
	const char *own, *slash;
	void *symbol = dlsym(RTLD_DEFAULT, "slurm_bit_copy");

	if (!dladdr((void *)target_path, &self) || !(slash = strrchr(self.dli_fname, '/')))
		return -1;
	own = slash + 1;
	if (!strcmp(own, "select_gpuos.so")) {
		snprintf(path, size, "%.*s/inner/%s", (int)(slash - self.dli_fname),
			 self.dli_fname, own);
		return 0;
	}
	inner = slash - self.dli_fname >= 6 && !strncmp(slash - 6, "/inner", 6);
	if (!symbol || !dladdr(symbol, &slurm) || !(slash = strrchr(slurm.dli_fname, '/')))
		return -1;
	snprintf(path, size, "%.*s/%s", (int)(slash - slurm.dli_fname), slurm.dli_fname, own);
	return 0;
}

/* Only slurmctld has samples: the other programs that load select plugins place no job. */
static void open_samples(void)
{
	char path[4096];
	const char *conf = getenv("SLURM_CONF");
	char *slash;
	int fd;

	if (out || !conf || !dlsym(RTLD_DEFAULT, "find_job_record"))
		return;
	snprintf(path, sizeof(path), "%s", conf);
	for (int up = 0; up < 2; up++)
		if ((slash = strrchr(path, '/')))
			*slash = '\0';
	strncat(path, "/log/job_test.samples", sizeof(path) - strlen(path) - 1);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		return;
	if (!ftruncate(fd, sizeof(struct file))) {
		void *map = mmap(NULL, sizeof(struct file), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_POPULATE, fd, 0);
		if (map != MAP_FAILED) {
			out = map;
			out->magic = 0x31747365746a6f62; /* "bojtest1" */
		}
	}
	close(fd);
}

__attribute__((constructor)) static void load(void)
{
	char path[4096];

	if (target)
		return;
	if (target_path(path, sizeof(path))) {
		fprintf(stderr, "probe: no plugin to measure\n");
		return;
	}
	target = dlopen(path, RTLD_LAZY);
	if (!target) {
		fprintf(stderr, "probe: %s\n", dlerror());
		return;
	}
	bit_set_count = (int32_t (*)(void *))dlsym(RTLD_DEFAULT, "slurm_bit_set_count");
	take_over();
}

static uint64_t now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint32_t count(long bitmap)
{
	return bit_set_count && bitmap ? (uint32_t)bit_set_count((void *)bitmap) : 0;
}

/* Calls in slurmctld come under its node write lock, one at a time. */
static void note(struct sample *sample)
{
	uint64_t at;

	if (!out || (at = out->count) >= CAPACITY)
		return;
	out->samples[at] = *sample;
	__atomic_store_n(&out->count, at + 1, __ATOMIC_RELEASE);
}

/*
 * Every function of a select plugin takes at most ten integers or pointers and returns one: ten are
 * handed on whatever the signature, and the surplus stays unread.
 */
#define CALL(name) \
	static function f; \
	if (!f && target) \
		f = (function)dlsym(target, name); \
	if (!f) \
		return -1;

#define FORWARD(name) \
	long name(long a, long b, long c, long d, long e, long g, long h, long i, long j, long k) \
	{ \
		CALL(#name) \
		return f(a, b, c, d, e, g, h, i, j, k); \
	}

#define TIMED(name, what) \
	long name(long a, long b, long c, long d, long e, long g, long h, long i, long j, long k) \
	{ \
		struct sample s = { .kind = what }; \
		long code; \
		CALL(#name) \
		if (inner) \
			return f(a, b, c, d, e, g, h, i, j, k); \
		s.cpu_ns = now(CLOCK_THREAD_CPUTIME_ID); \
		s.at_ns = now(CLOCK_MONOTONIC); \
		code = f(a, b, c, d, e, g, h, i, j, k); \
		s.wall_ns = now(CLOCK_MONOTONIC) - s.at_ns; \
		s.cpu_ns = now(CLOCK_THREAD_CPUTIME_ID) - s.cpu_ns; \
		s.code = (int32_t)code; \
		note(&s); \
		return code; \
	}

long select_p_job_test(long job, long nodes, long min_nodes, long max_nodes, long req_nodes,
		       long mode, long h, long i, long j, long k)
{
	struct sample s = { .kind = JOB_TEST, .mode = (uint32_t)mode & 0xffff,
			    .min_nodes = (uint32_t)min_nodes, .candidates = count(nodes) };
	long code;

	CALL("select_p_job_test")
	if (inner) {
		/* As little as possible: this stands in gpuos's time. */
		s.kind = INNER_JOB_TEST;
		s.at_ns = now(CLOCK_MONOTONIC);
		code = f(job, nodes, min_nodes, max_nodes, req_nodes, mode, h, i, j, k);
		s.wall_ns = now(CLOCK_MONOTONIC) - s.at_ns;
		s.code = (int32_t)code;
		note(&s);
		return code;
	}
	s.cpu_ns = now(CLOCK_THREAD_CPUTIME_ID);
	s.at_ns = now(CLOCK_MONOTONIC);
	code = f(job, nodes, min_nodes, max_nodes, req_nodes, mode, h, i, j, k);
	s.wall_ns = now(CLOCK_MONOTONIC) - s.at_ns;
	s.cpu_ns = now(CLOCK_THREAD_CPUTIME_ID) - s.cpu_ns;
	s.code = (int32_t)code;
	s.chosen = count(nodes);
	note(&s);
	return code;
}

int init(void)
{
	function f = target ? (function)dlsym(target, "init") : NULL;
	int code = f ? (int)f(0, 0, 0, 0, 0, 0, 0, 0, 0, 0) : -1;

	/* A plugin may settle its id only now. */
	if (target)
		take_over();
	open_samples();
	return code;
}

int fini(void)
{
	function f = target ? (function)dlsym(target, "fini") : NULL;

	return f ? (int)f(0, 0, 0, 0, 0, 0, 0, 0, 0, 0) : 0;
}

TIMED(select_p_select_nodeinfo_set, NODEINFO_SET)
TIMED(select_p_job_fini, JOB_FINI)

FORWARD(select_p_get_info_from_plugin)
FORWARD(select_p_job_begin)
FORWARD(select_p_job_expand)
FORWARD(select_p_job_init)
FORWARD(select_p_job_mem_reduce)
FORWARD(select_p_job_ready)
FORWARD(select_p_job_resized)
FORWARD(select_p_job_resume)
FORWARD(select_p_job_signal)
FORWARD(select_p_job_suspend)
FORWARD(select_p_node_init)
FORWARD(select_p_reconfigure)
FORWARD(select_p_resv_test)
FORWARD(select_p_select_jobinfo_alloc)
FORWARD(select_p_select_jobinfo_copy)
FORWARD(select_p_select_jobinfo_free)
FORWARD(select_p_select_jobinfo_get)
FORWARD(select_p_select_jobinfo_pack)
FORWARD(select_p_select_jobinfo_set)
FORWARD(select_p_select_jobinfo_sprint)
FORWARD(select_p_select_jobinfo_unpack)
FORWARD(select_p_select_jobinfo_xstrdup)
FORWARD(select_p_select_nodeinfo_alloc)
FORWARD(select_p_select_nodeinfo_free)
FORWARD(select_p_select_nodeinfo_get)
FORWARD(select_p_select_nodeinfo_pack)
FORWARD(select_p_select_nodeinfo_set_all)
FORWARD(select_p_select_nodeinfo_unpack)
FORWARD(select_p_state_restore)
FORWARD(select_p_state_save)
FORWARD(select_p_step_finish)
FORWARD(select_p_step_pick_nodes)
FORWARD(select_p_step_start)
FORWARD(select_p_update_node_config)
