/* SPDX-License-Identifier: BSD-3-Clause */
#include "workload.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENTRIES   (INT64_C(1) << 31)
#define MAX_INSTANCES (1 << 16) /* of one definition; threads also in all */

/* An element more; without memory for definitions nothing can run. */
static void *extend(void *array, unsigned *count, size_t size)
{
	char *p = realloc(array, (*count + 1) * size);

	if (p == NULL)
		abort();
	memset(p + *count * size, 0, size);
	++*count;
	return p;
}

static bool get_int(const struct wml *wml, const struct wml_object *o, enum wml_attr attr,
	int64_t min, int64_t max, int64_t *out, struct flow_error *error)
{
	return wml_int(wml, &o->attr[attr], wml_attr_name(attr), min, max, out, error);
}

static bool get_bool(const struct wml *wml, const struct wml_object *o, enum wml_attr attr,
	bool *out, struct flow_error *error)
{
	return wml_bool(wml, &o->attr[attr], wml_attr_name(attr), out, error);
}

static bool get_string(const struct wml *wml, const struct wml_object *o, enum wml_attr attr,
	const char **out, struct flow_error *error)
{
	return wml_string(wml, &o->attr[attr], wml_attr_name(attr), out, error);
}

static bool get_number(const struct wml *wml, const struct wml_object *o, enum wml_attr attr,
	struct number *out, struct flow_error *error)
{
	return wml_number(wml, &o->attr[attr], wml_attr_name(attr), out, error);
}

/* The line of an attribute, or of its object if it is absent. */
static int attr_line(const struct wml_object *o, enum wml_attr attr)
{
	return o->attr[attr].line != 0 ? o->attr[attr].line : o->line;
}

bool workload_define(struct workload *w, const struct wml_object *object, struct flow_error *error)
{
	const char *name = NULL, *other = NULL;

	if (object->kind == WML_PROCESS) {
		w->processes = extend(w->processes, &w->process_count, sizeof *w->processes);
		w->processes[w->process_count - 1].object = object;
		return true;
	}
	if (!get_string(w->wml, object, ATTR_NAME, &name, error))
		return false;
	for (unsigned i = 0; i < w->file_count; i++)
		if (get_string(w->wml, w->files[i].object, ATTR_NAME, &other, error) &&
			strcmp(name, other) == 0)
			return flow_error_set(error,
				"%s:%d: expected a new name, found '%s' of the fileset of line %d",
				w->wml->file, object->line, name, w->files[i].object->line);
	w->files = extend(w->files, &w->file_count, sizeof *w->files);
	w->files[w->file_count - 1].object = object;
	return true;
}

/* prealloc=true is prealloc=100. */
static bool get_prealloc(
	const struct wml *wml, const struct wml_object *o, unsigned *out, struct flow_error *error)
{
	struct flow_error ignored;
	bool all = false;
	int64_t percent = 0;

	if (get_bool(wml, o, ATTR_PREALLOC, &all, &ignored))
		percent = all ? 100 : 0;
	else if (!get_int(wml, o, ATTR_PREALLOC, 0, 100, &percent, error))
		return false;
	*out = (unsigned)percent;
	return true;
}

static bool bind_file(const struct wml *wml, struct file_def *def, struct flow_error *error)
{
	const struct wml_object *o = def->object;
	struct fileset_spec *s = &def->spec;
	bool file = o->kind == WML_FILE, paralloc;
	int64_t entries = file ? 1 : 0, dirwidth = file ? 10 : 0, dirgamma = file ? 0 : 1500;

	*s = (struct fileset_spec){.size.value = 1024};
	/* Files are always made in parallel; the attribute is for Filebench. */
	if (!get_string(wml, o, ATTR_NAME, &s->name, error) ||
		!get_string(wml, o, ATTR_PATH, &s->path, error) ||
		!get_int(wml, o, ATTR_ENTRIES, 1, MAX_ENTRIES, &entries, error) ||
		!get_number(wml, o, ATTR_SIZE, &s->size, error) ||
		!get_prealloc(wml, o, &s->prealloc, error) ||
		!get_bool(wml, o, ATTR_PARALLOC, &paralloc, error) ||
		!get_bool(wml, o, ATTR_REUSE, &s->reuse, error) ||
		!get_bool(wml, o, ATTR_READONLY, &s->readonly, error) ||
		!get_bool(wml, o, ATTR_WRITEONLY, &s->writeonly, error) ||
		!get_int(wml, o, ATTR_DIRWIDTH, 2, UINT32_MAX, &dirwidth, error) ||
		!get_int(wml, o, ATTR_DIRGAMMA, 0, 1000000, &dirgamma, error))
		return false;
	if (entries == 0 || dirwidth == 0)
		return flow_error_set(error, "%s:%d: expected attribute %s of fileset %s",
			wml->file, o->line, entries == 0 ? "entries" : "dirwidth", s->name);
	if (strchr(s->name, '/') != NULL)
		return flow_error_set(error, "%s:%d: expected a name without '/', found '%s'",
			wml->file, o->attr[ATTR_NAME].line, s->name);
	s->entries = (uint64_t)entries;
	s->dirwidth = (unsigned)dirwidth;
	s->dirgamma = (double)dirgamma / 1000;
	def->bound = true;
	return true;
}

bool workload_bind_files(struct workload *w, struct flow_error *error)
{
	for (unsigned i = 0; i < w->file_count; i++)
		if (!w->files[i].bound && !bind_file(w->wml, &w->files[i], error))
			return false;
	return true;
}

static bool find_fileset(const struct workload *w, const struct wml_object *o, const char *name,
	struct fileset **out, struct flow_error *error)
{
	char names[512] = "";

	for (unsigned i = 0; i < w->file_count; i++) {
		const struct file_def *def = &w->files[i];

		if (strcmp(def->spec.name, name) == 0) {
			*out = def->fs;
			return true;
		}
		snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
			i > 0 ? ", " : "", def->spec.name);
	}
	return flow_error_set(error, "%s:%d: expected a fileset that is defined (%s), found '%s'",
		w->wml->file, attr_line(o, ATTR_FILESET), w->file_count > 0 ? names : "none", name);
}

/* The row of the results for a flowop. */
static bool find_row(
	struct workload *w, const struct wml_object *o, struct flowop *op, struct flow_error *error)
{
	for (unsigned i = 0; i < w->row_count; i++) {
		if (strcmp(w->rows[i].name, op->name) != 0)
			continue;
		op->row = i;
		return w->rows[i].type == op->type ||
		       flow_error_set(error,
			       "%s:%d: expected a new name, found '%s' of a flowop of another type",
			       w->wml->file, o->line, op->name);
	}
	op->row = w->row_count;
	w->rows = extend(w->rows, &w->row_count, sizeof *w->rows);
	w->rows[op->row] = (struct row_def){.name = op->name, .type = op->type};
	return true;
}

/* Semaphores of the kernel hold no more. */
#define MOST_POSTS 32767

/* What aiowrite and the semaphores cannot do without, or with more. */
static bool check_database(const struct workload *w, const struct wml_object *o,
	const struct flowop *op, uint64_t memsize, struct flow_error *error)
{
	const char *what = NULL;

	if (op->type == FLOWOP_AIOWRITE && memsize == 0)
		what = "memsize of the thread, in which data stay until they are written, for";
	else if (op->type == FLOWOP_AIOWRITE && !op->random)
		what = "attribute random of";
	else if (op->type == FLOWOP_SEMPOST && o->attr[ATTR_TARGET].line == 0)
		what = "attribute target of";
	if (what != NULL)
		return flow_error_set(error, "%s:%d: expected %s flowop %s (%s)", w->wml->file,
			o->line, what, op->name, flowop_type_name(op->type));
	if ((op->type != FLOWOP_SEMBLOCK && op->type != FLOWOP_SEMPOST) ||
		(!op->value.varies && op->value.value > 0 && op->value.value <= MOST_POSTS &&
			!op->highwater.varies && op->highwater.value <= MOST_POSTS))
		return true;
	return flow_error_set(error,
		"%s:%d: expected a value from 1 and a highwater up to %d, both constant, of flowop "
		"%s (%s)",
		w->wml->file, o->line, MOST_POSTS, op->name, flowop_type_name(op->type));
}

/* What a flowop cannot do without. */
static bool check_flowop(const struct workload *w, const struct wml_object *o,
	const struct flowop *op, uint64_t memsize, struct flow_error *error)
{
	const char *missing = NULL;
	bool sized = op->type == FLOWOP_READ || op->type == FLOWOP_WRITE ||
		     op->type == FLOWOP_APPENDFILE || op->type == FLOWOP_APPENDFILERAND ||
		     op->type == FLOWOP_AIOWRITE;

	switch (op->type) {
	case FLOWOP_CREATEFILE:
	case FLOWOP_OPENFILE:
		missing = "filesetname";
		break;
	case FLOWOP_DELETEFILE:
	case FLOWOP_STATFILE:
		missing = op->fd == 0 ? "filesetname" : NULL;
		break;
	default:
		break;
	}
	if (missing != NULL && o->attr[ATTR_FILESET].line != 0)
		missing = NULL;
	if (sized && !op->iosize.varies && op->iosize.value == 0)
		missing = "iosize";
	if (!flowop_is_io(op->type) && op->type != FLOWOP_EVENTLIMIT &&
		o->attr[ATTR_VALUE].line == 0)
		missing = "value";
	if (missing != NULL)
		return flow_error_set(error, "%s:%d: expected attribute %s of flowop %s (%s)",
			w->wml->file, o->line, missing, op->name, flowop_type_name(op->type));
	if (memsize > 0 && !op->iosize.varies && op->iosize.value > memsize &&
		(sized || op->type == FLOWOP_READWHOLEFILE))
		return flow_error_set(error,
			"%s:%d: expected iosize of flowop %s up to the thread's memsize=%" PRIu64
			", found %" PRIu64,
			w->wml->file, attr_line(o, ATTR_IOSIZE), op->name, memsize,
			op->iosize.value);
	return check_database(w, o, op, memsize, error);
}

static bool bind_flowop(struct workload *w, const struct wml_object *o, uint64_t memsize,
	struct flowop *op, struct flow_error *error)
{
	const struct wml *wml = w->wml;
	const char *fileset = NULL;
	int64_t fd = 0, srcfd = 0;

	*op = (struct flowop){.type = o->type,
		.file = wml->file,
		.line = o->line,
		.iters.value = 1,
		.target = -1};
	if (!get_string(wml, o, ATTR_NAME, &op->name, error) ||
		!get_string(wml, o, ATTR_FILESET, &fileset, error) ||
		!get_int(wml, o, ATTR_FD, 0, FLOW_FDS - 1, &fd, error) ||
		!get_int(wml, o, ATTR_SRCFD, 0, FLOW_FDS - 1, &srcfd, error) ||
		!get_number(wml, o, ATTR_IOSIZE, &op->iosize, error) ||
		!get_number(wml, o, ATTR_WORKINGSET, &op->workingset, error) ||
		!get_number(wml, o, ATTR_ITERS, &op->iters, error) ||
		!get_number(wml, o, ATTR_VALUE, &op->value, error) ||
		!get_number(wml, o, ATTR_INDEXED, &op->indexed, error) ||
		!get_number(wml, o, ATTR_HIGHWATER, &op->highwater, error) ||
		!get_bool(wml, o, ATTR_RANDOM, &op->random, error) ||
		!get_bool(wml, o, ATTR_DSYNC, &op->dsync, error) ||
		!get_bool(wml, o, ATTR_DIRECTIO, &op->directio, error) ||
		!get_bool(wml, o, ATTR_NOREADAHEAD, &op->noreadahead, error) ||
		!get_bool(wml, o, ATTR_OPENNEXT, &op->opennext, error) ||
		!get_bool(wml, o, ATTR_BLOCKING, &op->blocking, error))
		return false;
	op->fd = (unsigned)fd;
	op->srcfd = (unsigned)srcfd;
	op->has_indexed = o->attr[ATTR_INDEXED].line != 0;
	return (fileset == NULL || find_fileset(w, o, fileset, &op->fs, error)) &&
	       check_flowop(w, o, op, memsize, error) && find_row(w, o, op, error);
}

/* target= of a finishon* names a flowop of the same thread. */
static bool bind_target(const struct wml *wml, const struct wml_object *o,
	const struct thread_def *t, struct flowop *op, struct flow_error *error)
{
	const char *target = NULL;

	if (!get_string(wml, o, ATTR_TARGET, &target, error))
		return false;
	if (target == NULL || op->type == FLOWOP_SEMPOST)
		return true;
	for (unsigned i = 0; i < t->count; i++)
		if (strcmp(t->flowops[i].name, target) == 0)
			op->target = (int)i;
	return op->target >= 0 ||
	       flow_error_set(error, "%s:%d: expected a flowop of thread %s for target, found '%s'",
		       wml->file, o->attr[ATTR_TARGET].line, t->name, target);
}

/* The threads' flowops that opennext on one fileset go on with one rotor. */
static void share_rotors(struct thread_def *t)
{
	for (unsigned i = 0; i < t->count; i++) {
		struct flowop *op = &t->flowops[i];

		for (op->rotor = 0; op->rotor < i; op->rotor++)
			if (t->flowops[op->rotor].opennext && t->flowops[op->rotor].fs == op->fs)
				break;
	}
}

static bool bind_thread(struct workload *w, const struct wml_object *o, struct thread_def *t,
	struct flow_error *error)
{
	int64_t instances = 1, memsize = 0;

	if (!get_string(w->wml, o, ATTR_NAME, &t->name, error) ||
		!get_int(w->wml, o, ATTR_INSTANCES, 1, MAX_INSTANCES, &instances, error) ||
		!get_int(w->wml, o, ATTR_MEMSIZE, 0, INT64_C(1) << 40, &memsize, error))
		return false;
	t->instances = (unsigned)instances;
	t->memsize = (uint64_t)memsize;
	for (const struct wml_object *f = o->children; f != NULL; f = f->next) {
		t->flowops = extend(t->flowops, &t->count, sizeof *t->flowops);
		if (!bind_flowop(w, f, t->memsize, &t->flowops[t->count - 1], error))
			return false;
	}

	share_rotors(t);

	unsigned i = 0;

	for (const struct wml_object *f = o->children; f != NULL; f = f->next, i++)
		if (!bind_target(w->wml, f, t, &t->flowops[i], error))
			return false;
	return true;
}

/* target= of a sempost names semblocks, of whatever threads. */
static bool bind_posts(struct workload *w, const struct wml_object *threads,
	const struct process_def *p, struct flow_error *error)
{
	unsigned i = 0;

	for (; threads != NULL; threads = threads->next, i++) {
		const struct wml_object *o = threads->children;

		for (unsigned j = 0; j < p->threads[i].count; j++, o = o->next) {
			struct flowop *op = &p->threads[i].flowops[j];
			const char *target = NULL;

			if (op->type != FLOWOP_SEMPOST)
				continue;
			if (!get_string(w->wml, o, ATTR_TARGET, &target, error))
				return false;
			for (unsigned k = 0; k < w->row_count; k++)
				if (w->rows[k].type == FLOWOP_SEMBLOCK &&
					strcmp(w->rows[k].name, target) == 0)
					op->target = (int)k;
			if (op->target < 0)
				return flow_error_set(error,
					"%s:%d: expected a semblock for target, found '%s'",
					w->wml->file, o->attr[ATTR_TARGET].line, target);
		}
	}
	return true;
}

static bool counts_process(const struct thread_def *t)
{
	for (unsigned i = 0; i < t->count; i++)
		if ((t->flowops[i].type == FLOWOP_FINISHONCOUNT ||
			    t->flowops[i].type == FLOWOP_FINISHONBYTES) &&
			t->flowops[i].target < 0)
			return true;
	return false;
}

/* Which threads do finishon* of others count? */
static void find_counted(struct process_def *p)
{
	bool any = false;

	for (unsigned i = 0; i < p->count; i++)
		any = any || counts_process(&p->threads[i]);
	for (unsigned i = 0; i < p->count; i++)
		p->threads[i].counted = any && !counts_process(&p->threads[i]);
}

/* All threads of a run, of which these are some. */
static bool add_threads(const struct workload *w, const struct wml_object *o,
	const struct process_def *p, const struct thread_def *t, uint64_t *threads,
	struct flow_error *error)
{
	*threads += (uint64_t)p->instances * t->instances;
	return *threads <= MAX_INSTANCES ||
	       flow_error_set(error,
		       "%s:%d: expected at most %d threads in all, found %" PRIu64
		       " with thread %s of process %s; lower instances",
		       w->wml->file, attr_line(o, ATTR_INSTANCES), MAX_INSTANCES, *threads, t->name,
		       p->name);
}

bool workload_bind_processes(struct workload *w, struct flow_error *error)
{
	uint64_t threads = 0;

	for (unsigned i = 0; i < w->process_count; i++) {
		struct process_def *p = &w->processes[i];
		int64_t instances = 1;

		if (!get_string(w->wml, p->object, ATTR_NAME, &p->name, error) ||
			!get_int(w->wml, p->object, ATTR_INSTANCES, 1, MAX_INSTANCES, &instances,
				error))
			return false;
		p->instances = (unsigned)instances;
		for (const struct wml_object *o = p->object->children; o != NULL; o = o->next) {
			p->threads = extend(p->threads, &p->count, sizeof *p->threads);
			if (!bind_thread(w, o, &p->threads[p->count - 1], error) ||
				!add_threads(w, o, p, &p->threads[p->count - 1], &threads, error))
				return false;
		}
		find_counted(p);
	}
	for (unsigned i = 0; i < w->process_count; i++)
		if (!bind_posts(w, w->processes[i].object->children, &w->processes[i], error))
			return false;
	return true;
}

void workload_free(struct workload *w)
{
	for (unsigned i = 0; i < w->process_count; i++) {
		for (unsigned j = 0; j < w->processes[i].count; j++)
			free(w->processes[i].threads[j].flowops);
		free(w->processes[i].threads);
	}
	for (unsigned i = 0; i < w->file_count; i++)
		fileset_free(w->files[i].fs);
	free(w->processes);
	free(w->files);
	free(w->rows);
	*w = (struct workload){.wml = w->wml};
}
