/* SPDX-License-Identifier: BSD-3-Clause */
/* Threads that share filesets, and whole runs, with what they count. */
#include <aio.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/flow/crew.h"
#include "tests/unit/support.h"

#define THREADS 8
#define TAKES	3000

static _Atomic bool never;
static _Atomic uint64_t slow_until; /* ns: no write of aiowrite ends before */

int __real_aio_error64(const struct aiocb *control);
int __wrap_aio_error64(const struct aiocb *control);

int __wrap_aio_error64(const struct aiocb *control)
{
	return flow_now() < slow_until ? EINPROGRESS : __real_aio_error64(control);
}

static uint64_t late; /* ns that the sampler went on after the end */

uint64_t __real_crew_result(const struct crew *c, struct run_result *result);
uint64_t __wrap_crew_result(const struct crew *c, struct run_result *result);

uint64_t __wrap_crew_result(const struct crew *c, struct run_result *result)
{
	return __real_crew_result(c, result) - late;
}

struct crowd {
	struct fileset *fs;
	_Atomic int *holders; /* of each file */
	_Atomic int clashes, taken;
};

static struct crowd crowd(uint64_t entries, unsigned prealloc)
{
	const struct fileset_spec spec = {.name = "f",
		.path = "/t",
		.entries = entries,
		.dirwidth = 100,
		.prealloc = prealloc};
	struct flow_error error;
	struct crowd c = {.fs = fileset_new(&spec, 1, &error)};

	assert_non_null(c.fs);
	c.holders = calloc(entries, sizeof *c.holders);
	assert_non_null(c.holders);
	return c;
}

static void disperse(struct crowd *c)
{
	fileset_free(c->fs);
	free((void *)c->holders);
}

static void together(void *(*body)(void *), void *arg)
{
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, body, arg), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
}

static void hold(struct crowd *c, uint32_t file)
{
	if (atomic_fetch_add(&c->holders[file], 1) != 0)
		atomic_fetch_add(&c->clashes, 1);
	atomic_fetch_add(&c->taken, 1);
}

static void let_go(struct crowd *c, uint32_t file, uint32_t state)
{
	atomic_fetch_sub(&c->holders[file], 1);
	fileset_give(c->fs, file, state);
}

/* Deletes until nothing is left, without giving the place in `holders` back. */
static void *delete_all(void *opaque)
{
	struct crowd *c = opaque;
	uint32_t file;

	while ((file = fileset_pick(c->fs, PICK_EXISTING, NO_FILE, &never)) != NO_FILE) {
		hold(c, file);
		fileset_give(c->fs, file, 0);
	}
	return NULL;
}

/* Each file is deleted by one thread, none is left out. */
static void test_each_file_once(void **state)
{
	struct crowd c = crowd(20000, 100);

	(void)state;
	together(delete_all, &c);
	assert_int_equal(c.taken, 20000);
	assert_int_equal(c.clashes, 0);
	disperse(&c);
}

/* Opens, and closes again; three files for eight threads, so that they wait. */
static void *open_and_close(void *opaque)
{
	struct crowd *c = opaque;

	for (int i = 0; i < TAKES; i++) {
		uint32_t before, file = fileset_pick(c->fs, PICK_EXISTING, NO_FILE, &never);

		hold(c, file);
		let_go(c, file, fileset_state(c->fs, file) + 1);
		if (!fileset_take(c->fs, file, &before, &never))
			abort();
		hold(c, file);
		let_go(c, file, before - 1);
	}
	return NULL;
}

static void test_waiting(void **state)
{
	struct crowd c = crowd(3, 100);

	(void)state;
	together(open_and_close, &c);
	assert_int_equal(c.taken, 2 * THREADS * TAKES);
	assert_int_equal(c.clashes, 0);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(fileset_state(c.fs, i), FILE_EXISTS);
	assert_int_equal(c.fs->waiters, 0);
	disperse(&c);
}

/* Creates and deletes in turn. */
static void *create_and_delete(void *opaque)
{
	struct crowd *c = opaque;

	for (int i = 0; i < TAKES; i++) {
		uint32_t file = fileset_pick(c->fs, PICK_ABSENT, NO_FILE, &never);

		if (file != NO_FILE) {
			hold(c, file);
			let_go(c, file, FILE_EXISTS);
		}
		file = fileset_pick(c->fs, PICK_CLOSED, NO_FILE, &never);
		if (file != NO_FILE) {
			hold(c, file);
			let_go(c, file, 0);
		}
	}
	return NULL;
}

/* Existence in the index is what the states say, when all is quiet. */
static void test_index(void **state)
{
	struct crowd c = crowd(200, 50);
	uint32_t existing = 0;

	(void)state;
	together(create_and_delete, &c);
	assert_int_equal(c.clashes, 0);
	for (uint32_t i = 0; i < 200; i++) {
		bool indexed = c.fs->exists[i / 64] >> (i % 64) & 1;

		assert_int_equal(indexed, (fileset_state(c.fs, i) & FILE_EXISTS) != 0);
		existing += indexed;
	}
	assert_int_equal(existing, c.fs->existing);
	disperse(&c);
}

/* ---- whole runs ---- */

struct scene {
	struct wml *wml;
	struct workload workload;
	struct run_result result;
	unsigned prints;
};

static unsigned prints;

static void count_print(const struct workload *w, const struct stats *rows, double seconds)
{
	(void)w, (void)rows;
	assert_true(seconds > 0);
	prints++;
}

static bool go_on(const struct fileset *fs, uint64_t files, uint64_t bytes, double seconds)
{
	(void)fs, (void)files, (void)bytes, (void)seconds;
	return true;
}

static void prepare(struct scene *s, const char *text, struct flow_error *error)
{
	char pin[512];

	*s = (struct scene){.wml = wml_parse("w.f", text, error)};
	if (!s->wml)
		fail_msg("%s", error->text);
	s->workload.wml = s->wml;
	snprintf(pin, sizeof pin, "dir=%s", scratch());
	assert_true(wml_pin(s->wml, pin, error));

	bool ok = true;

	for (struct wml_statement *t = s->wml->statements; ok && t; t = t->next)
		if (t->command == CMD_DEFINE)
			ok = workload_define(&s->workload, t->object, error);
	ok = ok && workload_bind_files(&s->workload, error);
	for (unsigned i = 0; ok && i < s->workload.file_count; i++) {
		struct file_def *def = &s->workload.files[i];

		def->fs = fileset_new(&def->spec, 1, error);
		ok = def->fs && fileset_create(def->fs, 1, false, go_on, error);
	}
	ok = ok && workload_bind_processes(&s->workload, error);
	if (!ok)
		fail_msg("%s", error->text);
}

static bool perform(struct scene *s, const char *text, const struct run_options *options,
	struct flow_error *error)
{
	prepare(s, text, error);
	prints = 0;
	run_block_signals(true);

	bool ok = run_perform(&s->workload, options, count_print, &s->result, error);
	run_block_signals(false);
	s->prints = prints;
	return ok;
}

static void leave(struct scene *s)
{
	struct flow_error error;

	for (unsigned i = 0; i < s->workload.file_count; i++)
		assert_true(fileset_remove(s->workload.files[i].fs, &error));
	run_result_free(&s->result);
	workload_free(&s->workload);
	wml_free(s->wml);
}

static const struct stats *row(const struct scene *s, const char *name)
{
	for (unsigned i = 0; i < s->workload.row_count; i++)
		if (strcmp(s->workload.rows[i].name, name) == 0)
			return &s->result.rows[i];
	fail_msg("no flowop %s", name);
	return NULL;
}

#define HEAD                                                                                       \
	"set $dir=x\n"                                                                             \
	"define fileset name=f,path=$dir,entries=300,dirwidth=20,size=5k,prealloc=80\n"            \
	"define process name=p { thread name=t,instances=6,memsize=64k {\n"
#define TAIL "} }\n"
#define FILE_SERVER                                                                                \
	"flowop createfile name=create1,filesetname=f,fd=1\n"                                      \
	"flowop writewholefile name=write1,fd=1,srcfd=1,iosize=2k\n"                               \
	"flowop closefile name=close1,fd=1\n"                                                      \
	"flowop openfile name=open2,filesetname=f,fd=1\n"                                          \
	"flowop appendfilerand name=append2,fd=1,iosize=1k\n"                                      \
	"flowop closefile name=close2,fd=1\n"                                                      \
	"flowop deletefile name=delete1,filesetname=f\n"                                           \
	"flowop statfile name=stat1,filesetname=f\n"

/* The intervals cover the run without gaps, and count what the rows count. */
static void check_intervals(const struct scene *s)
{
	uint64_t ops = 0, bins = 0, bytes = 0, row_ops = 0, sum_ns = 0;
	struct run_summary summary;
	double end = 0;

	run_summarize(&s->workload, s->result.rows, &summary);
	for (unsigned i = 0; i < s->result.interval_count; i++) {
		const struct run_interval *v = &s->result.intervals[i];

		assert_true(v->start == end && v->end > v->start);
		end = v->end;
		ops += v->ops;
		bytes += v->bytes;
		sum_ns += v->sum_ns;
		for (unsigned j = 0; j < v->bin_count; j++)
			bins += v->bins[j].count;
		for (unsigned j = 0; j < s->workload.row_count; j++)
			row_ops += v->row_ops[j];
	}
	assert_true(end == s->result.seconds);
	assert_true(summary.total.ops > 100);
	assert_int_equal(ops, summary.total.ops);
	assert_int_equal(row_ops, summary.total.ops);
	assert_int_equal(bins, summary.total.ops);
	assert_int_equal(bytes, summary.total.bytes);
	assert_int_equal(sum_ns, summary.total.sum_ns);
}

/* What the rows count is what the intervals count, and what is on disk afterwards. */
static void test_run_for_a_time(void **state)
{
	const struct run_options options = {.mode = MODE_TIMEOUT,
		.seconds = 2,
		.interval = 0.4,
		.period = 0.8,
		.clear = true,
		.seed = 3,
		.quiet = true};
	struct flow_error error;
	struct scene s;

	(void)state;
	if (!perform(&s, HEAD FILE_SERVER TAIL, &options, &error))
		fail_msg("%s", error.text);
	assert_int_equal(s.result.end, RUN_TIME);
	assert_int_equal((int)(s.result.seconds * 1e6), 2000000);
	/* Fewer where this machine is so busy that the sampler came late. */
	assert_in_range(s.prints, 1, 2);
	assert_in_range(s.result.interval_count, 2, 5);
	check_intervals(&s);
	assert_int_equal(row(&s, "write1")->bytes, row(&s, "write1")->ops * 5120);

	/* In rows that follow each other a thread is at most one operation apart, plus what
	 * ended after the time. */
	assert_in_range(row(&s, "create1")->ops - row(&s, "delete1")->ops, 0, 12);
	leave(&s);
}

/* A run ended by itself some moments before the sampler saw that. */
static void test_intervals_end_with_the_run(void **state)
{
	const struct run_options options = {
		.mode = MODE_TIMEOUT, .seconds = 1, .interval = 0.1, .seed = 3, .quiet = true};
	struct flow_error error;
	struct scene s;

	(void)state;
	late = 350000000;
	assert_true(perform(&s, HEAD FILE_SERVER TAIL, &options, &error));
	late = 0;
	check_intervals(&s);
	leave(&s);
}

/* userblk-flow gets no CPU: nobody ends the run when its time is over. */
static void test_threads_end_at_the_deadline_by_themselves(void **state)
{
	const struct run_options options = {.mode = MODE_TIMEOUT, .seed = 3, .quiet = true};
	struct flow_error error;
	struct run_result result = {0};
	struct scene s;
	double user_s = 0, system_s = 0;
	const struct timespec at_once = {0};
	sigset_t notices;

	(void)state;
	prepare(&s, HEAD FILE_SERVER TAIL, &error);
	run_block_signals(true);

	struct crew *crew = crew_new(&s.workload, &options, &error);

	assert_non_null(crew);
	assert_true(crew_start(crew));

	uint64_t start = flow_now(), deadline = start + 200000000;

	crew_release(crew, start, deadline);
	while (!crew_ended(crew) && flow_now() < deadline + 10000000000)
		usleep(1000);
	assert_true(crew_ended(crew));
	crew_join(crew, &user_s, &system_s);
	assert_int_equal(crew_result(crew, &result), deadline);
	assert_int_equal(result.end, RUN_TIME);
	crew_free(crew);
	crew_signals(&notices);
	while (sigtimedwait(&notices, NULL, &at_once) > 0)
		;
	run_block_signals(false);
	leave(&s);
}

static void test_all_done(void **state)
{
	const struct run_options options = {
		.mode = MODE_ALLDONE, .interval = 10, .seed = 3, .quiet = true};
	struct flow_error error;
	struct scene s;

	(void)state;
	assert_true(perform(
		&s, HEAD "flowop deletefile name=delete1,filesetname=f\n" TAIL, &options, &error));
	assert_int_equal(s.result.end, RUN_ALL_DONE);
	assert_int_equal(s.result.no_file, 6);
	assert_int_equal(row(&s, "delete1")->ops, s.workload.files[0].fs->existing);
	assert_true(s.result.seconds < 10); /* it did not wait for the sampler */
	leave(&s);
}

#define READS                                                                                      \
	"flowop openfile name=open1,filesetname=f,fd=1\n"                                          \
	"flowop readwholefile name=read1,fd=1\n"                                                   \
	"flowop closefile name=close1,fd=1\n"

/* finishoncount counts I/O operations; Filebench's counter also sees the finishoncount. */
static void test_finish_on_count(void **state)
{
	struct run_options options = {.mode = MODE_ALLDONE, .interval = 10, .quiet = true};
	const char *text = HEAD READS "flowop finishoncount name=finish1,value=6000\n" TAIL;
	struct flow_error error;
	struct scene s;

	(void)state;
	assert_true(perform(&s, text, &options, &error));
	assert_int_equal(s.result.finished, 6);
	assert_in_range(row(&s, "read1")->ops, 2000, 2006);
	leave(&s);

	options.original = true;
	assert_true(perform(&s, text, &options, &error));
	assert_in_range(row(&s, "read1")->ops, 1500, 1506);
	leave(&s);
}

/* The operations and bytes of a thread without a finishon* are those of its process, too. */
static void test_finish_counts_other_threads(void **state)
{
	static const char *const finish[] = {
		"finishoncount name=finish1,value=600", "finishonbytes name=finish1,value=1024000"};
	const struct run_options options = {
		.mode = MODE_TIMEOUT, .seconds = 10, .interval = 10, .quiet = true};
	char text[1024];
	struct flow_error error;
	struct scene s;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		snprintf(text, sizeof text,
			HEAD READS "}\nthread name=watcher {\n"
				   "flowop hog name=hog1,value=1000\nflowop %s\n" TAIL,
			finish[i]);
		assert_true(perform(&s, text, &options, &error));
		assert_int_equal(s.result.end, RUN_EARLY);
		assert_int_equal(s.result.finished, 1);
		assert_in_range(row(&s, "read1")->ops, 190, 100000);
		leave(&s);
	}
}

static void test_finish_targets(void **state)
{
	struct run_options options = {.mode = MODE_ALLDONE, .interval = 10, .quiet = true};
	struct flow_error error;
	struct scene s;

	(void)state;
	assert_true(perform(&s,
		HEAD READS "flowop finishoncount name=finish1,value=7,target=read1\n" TAIL,
		&options, &error));
	assert_int_equal(row(&s, "read1")->ops, 6 * 7);
	leave(&s);

	/* More than 10 whole files of 5 KiB each. */
	assert_true(perform(&s,
		HEAD READS "flowop finishonbytes name=finish1,value=51200,target=read1\n" TAIL,
		&options, &error));
	assert_int_equal(row(&s, "read1")->ops, 6 * 11);
	leave(&s);

	/* firstdone and timeout end with the first thread. */
	options.mode = MODE_FIRSTDONE;
	assert_true(perform(&s,
		HEAD READS "flowop finishoncount name=finish1,value=700,target=read1\n" TAIL,
		&options, &error));
	assert_int_equal(s.result.end, RUN_FIRST_DONE);
	assert_in_range(row(&s, "read1")->ops, 700, 6 * 700);
	leave(&s);
	options.mode = MODE_TIMEOUT;
	options.seconds = 60;
	assert_true(perform(&s,
		HEAD READS "flowop finishoncount name=finish1,value=700,target=read1\n" TAIL,
		&options, &error));
	assert_int_equal(s.result.end, RUN_EARLY);
	assert_true(s.result.seconds < 60);
	leave(&s);
}

/* A flowop that fails ends the run, and there are no results. */
static void test_failures(void **state)
{
	static const struct {
		const char *text, *message;
	} cases[] = {
		{HEAD "flowop closefile name=close1,fd=3\n" TAIL,
			"w.f:4: flowop close1: fd=3 is not open; open it first"},
		{HEAD "flowop openfile name=open1,filesetname=f,fd=1\n" TAIL,
			"w.f:4: flowop open1: fd=1 is open already"},
		{HEAD "flowop fsync name=fsync1,fd=1\n" TAIL, "fd=1 is not open"},
		{HEAD "flowop read name=read1,fd=1,iosize=1k\n" TAIL, "name filesetname="},
		{HEAD "flowop read name=read1,fd=1,filesetname=f,iosize=8k,random\n" TAIL,
			"iosize=8192 exceeds the 5120 bytes it works on; lower it"},
		{HEAD "flowop createfile name=create1,filesetname=f,fd=1\n"
		      "flowop read name=read1,fd=1,iosize=1k\n" TAIL,
			"w.f:5: flowop read1: fd=1 holds no data where it reads"},
		{HEAD "flowop openfile name=open1,filesetname=f,fd=1\n"
		      "flowop writewholefile name=write1,fd=1,srcfd=2\n" TAIL,
			"fd=1 has no source: srcfd= holds no file"},
	};
	const struct run_options options = {
		.mode = MODE_TIMEOUT, .seconds = 10, .interval = 1, .quiet = true};
	struct flow_error error;
	struct scene s;

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (perform(&s, cases[i].text, &options, &error))
			fail_msg("ran: %s", cases[i].text);
		assert_holds(error.text, cases[i].message);
		assert_null(s.result.rows);
		leave(&s);
	}
}

#define DATABASE                                                                                   \
	"set $dir=x\n"                                                                             \
	"define fileset name=f,path=$dir,entries=5,dirwidth=20,size=8k,prealloc\n"                 \
	"define process name=w,instances=2 { thread name=w,memsize=8k {\n"                         \
	"flowop aiowrite name=write1,filesetname=f,iosize=4k,random,iters=6\n"                     \
	"flowop aiowait name=wait1\n"                                                              \
	"flowop semblock name=block1,value=10,highwater=30\n"

/* ThreadSanitizer dies in glibc's threads for asynchronous writes, which it does not know. */
#ifndef __SANITIZE_THREAD__
/* Posts reach every writer; a blocking poster is never further ahead than there is room. */
static void test_semaphores(void **state)
{
	const char *text =
		DATABASE "} } define process name=r { thread name=r,memsize=8k,instances=3 {\n"
			 "flowop read name=read1,filesetname=f,iosize=4k,random,opennext\n"
			 "flowop hog name=hog1,value=10\n"
			 "flowop sempost name=post1,value=1,target=block1,blocking\n"
			 "flowop finishoncount name=finish1,value=500,target=read1\n" TAIL;
	const struct run_options options = {
		.mode = MODE_TIMEOUT, .seconds = 30, .interval = 10, .seed = 3, .quiet = true};
	struct flow_error error;
	struct scene s;
	uint64_t posts, waits;

	(void)state;
	if (!perform(&s, text, &options, &error))
		fail_msg("%s", error.text);
	assert_int_equal(s.result.end, RUN_EARLY); /* a reader has its 500 */
	posts = row(&s, "post1")->ops;
	waits = row(&s, "block1")->ops;
	assert_in_range(posts, 400, 1500);
	assert_in_range(waits, 2 * ((posts - 40) / 10), 2 * (posts / 10 + 1));
	assert_in_range(row(&s, "write1")->ops, 6 * waits, 6 * (waits + 2) + 2);
	assert_int_equal(row(&s, "hog1")->bytes, 0);
	/* Each of a thread's descriptors is opened once, which counts as an operation; two threads
	 * may end before they have opened all. */
	assert_in_range(
		row(&s, "read1")->ops - row(&s, "read1")->bytes / 4096, FLOW_FDS, 3 * FLOW_FDS);
	leave(&s);
}

/* A thread that waits when the time is over ends; half of what it wrote is waited for. */
static void test_wait_ends(void **state)
{
	const struct run_options options = {
		.mode = MODE_TIMEOUT, .seconds = 1, .interval = 10, .seed = 3, .quiet = true};
	struct flow_error error;
	struct scene s;

	(void)state;
	if (!perform(&s, DATABASE TAIL, &options, &error))
		fail_msg("%s", error.text);
	assert_int_equal(s.result.end, RUN_TIME);
	assert_int_equal(row(&s, "block1")->ops, 0);
	assert_int_equal(row(&s, "wait1")->ops, 2);
	assert_int_equal(row(&s, "write1")->bytes, 2 * 6 * 4096);
	assert_true(s.result.seconds < 1.1);
	assert_int_equal(s.result.unfinished_writes, 0);
	leave(&s);
}

/*
 * A store that takes long: what was counted when it was submitted, and is written after the end,
 * is in the results.
 */
static void test_unfinished_writes(void **state)
{
	const struct run_options options = {
		.mode = MODE_TIMEOUT, .seconds = 1.5, .interval = 10, .seed = 3, .quiet = true};
	struct flow_error error;
	struct scene s;

	(void)state;
	slow_until = flow_now() + 3000000000;
	if (!perform(&s, DATABASE TAIL, &options, &error))
		fail_msg("%s", error.text);
	assert_true(flow_now() >= slow_until); /* the program waits for them, outside of the run */
	assert_int_equal((int)(s.result.seconds * 1e6), 1500000);
	assert_int_equal(row(&s, "wait1")->ops, 2); /* which give up after a second */
	assert_int_equal(row(&s, "write1")->bytes, 2 * 6 * 4096);
	assert_int_equal(s.result.unfinished_writes, 2 * 6);
	assert_int_equal(s.result.unfinished_bytes, 2 * 6 * 4096);
	leave(&s);
}

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_file_once),
		cmocka_unit_test(test_waiting),
		cmocka_unit_test(test_index),
		cmocka_unit_test(test_run_for_a_time),
		cmocka_unit_test(test_intervals_end_with_the_run),
		cmocka_unit_test(test_threads_end_at_the_deadline_by_themselves),
		cmocka_unit_test(test_threads_end_at_the_deadline_by_themselves),
		cmocka_unit_test(test_all_done),
		cmocka_unit_test(test_finish_on_count),
		cmocka_unit_test(test_finish_counts_other_threads),
		cmocka_unit_test(test_finish_targets),
		cmocka_unit_test(test_failures),
#ifndef __SANITIZE_THREAD__
		cmocka_unit_test(test_semaphores),
		cmocka_unit_test(test_wait_ends),
		cmocka_unit_test(test_unfinished_writes),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
