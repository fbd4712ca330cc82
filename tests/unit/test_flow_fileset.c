/* SPDX-License-Identifier: BSD-3-Clause */
/* Filesets: shape of the tree, rotation, and the tree on disk. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/flow/fileset.h"
#include "tests/unit/support.h"

static _Atomic bool never;

static struct fileset *make(const struct fileset_spec *spec, uint64_t seed)
{
	struct flow_error error;
	struct fileset *fs = fileset_new(spec, seed, &error);

	if (!fs)
		fail_msg("%s", error.text);
	return fs;
}

static const char *file_path(const struct fileset *fs, uint32_t file)
{
	static char path[FILESET_PATH];

	fileset_file_path(fs, file, path);
	return path;
}

/* Constant width: one level of full directories, as Filebench lays them out. */
static void test_constant_tree(void **state)
{
	const struct fileset_spec spec = {
		.name = "f", .path = "/t", .entries = 100000, .dirwidth = 1000, .size.value = 4096};
	struct fileset *fs = make(&spec, 1);

	(void)state;
	assert_int_equal(fs->entries, 100000);
	assert_int_equal(fs->directories, 100);
	assert_string_equal(file_path(fs, 0), "/t/f/00000001/00000001");
	assert_string_equal(file_path(fs, 999), "/t/f/00000001/00001000");
	assert_string_equal(file_path(fs, 1000), "/t/f/00000002/00000001");
	assert_string_equal(file_path(fs, 99999), "/t/f/00000100/00001000");
	assert_int_equal(fs->existing, 0);
	assert_int_equal(fileset_size(fs, 5), 4096);
	/* 8 bytes and a bit per file; directories with their paths are few here. */
	assert_in_range(fs->state_bytes, 100000 * 8 + 100000 / 8, 100000 * 8 + 100000 / 8 + 8192);
	fileset_free(fs);
}

/* A `define file`. */
static void test_single_file(void **state)
{
	const struct fileset_spec spec = {
		.name = "f", .path = "/t", .entries = 1, .dirwidth = 10, .prealloc = 100};
	struct fileset *fs = make(&spec, 1);

	(void)state;
	assert_string_equal(file_path(fs, 0), "/t/f/00000001/00000001");
	assert_int_equal(fs->existing, 1);
	fileset_free(fs);
}

/*
 * Gamma width: Filebench's own tree of these parameters has 527 directories, of
 * which 496 hold 20.2 files in the mean, 1 to 97. Ours draws other numbers from
 * the same distribution: the mean over seeds must come close.
 */
static void test_gamma_tree(void **state)
{
	const struct fileset_spec spec = {.name = "f",
		.path = "/t",
		.entries = 10000,
		.dirwidth = 20,
		.dirgamma = 1.5,
		.prealloc = 80,
		.size = {.varies = true, .cvar = {.mean = 131072, .gamma = 1.5}}};
	double directories = 0, leaves = 0, bytes = 0, existing = 0;
	const int seeds = 40;

	(void)state;
	for (int seed = 1; seed <= seeds; seed++) {
		struct fileset *fs = make(&spec, (uint64_t)seed);

		directories += fs->directories;
		for (uint32_t i = 0; i < fs->entries; i++) {
			leaves += i == 0 || fs->parent[i] != fs->parent[i - 1];
			bytes += (double)fileset_size(fs, i);
		}
		existing += (double)fs->existing;
		fileset_free(fs);
	}
	assert_true(fabs(directories / seeds - 527) < 25);
	assert_true(fabs(leaves / seeds - 496) < 20);
	assert_true(fabs(bytes / seeds / 10000 / 131072 - 1) < 0.01);
	assert_true(fabs(existing / seeds - 8000) < 30);
}

/* The seed decides, and filesets of a file do not depend on each other. */
static void test_seed(void **state)
{
	const struct fileset_spec spec = {.name = "f",
		.path = "/t",
		.entries = 5000,
		.dirwidth = 20,
		.dirgamma = 1.5,
		.prealloc = 50};
	struct fileset *a = make(&spec, 3), *b = make(&spec, 3), *c = make(&spec, 4);

	(void)state;
	assert_int_equal(a->paths_size, b->paths_size);
	assert_memory_equal(a->paths, b->paths, a->paths_size);
	assert_memory_equal((void *)a->exists, (void *)b->exists, 5000 / 8);
	assert_memory_not_equal((void *)a->exists, (void *)c->exists, 5000 / 8);
	fileset_free(a);
	fileset_free(b);
	fileset_free(c);
}

static struct fileset *small(unsigned prealloc)
{
	const struct fileset_spec spec = {.name = "f",
		.path = scratch(),
		.entries = 130,
		.dirwidth = 50,
		.prealloc = prealloc,
		.size.value = 3000};

	return make(&spec, 1);
}

static uint32_t pick(struct fileset *fs, enum pick what, uint32_t index)
{
	return fileset_pick(fs, what, index, &never);
}

static void test_rotation(void **state)
{
	struct fileset *fs = small(100);

	(void)state;
	assert_int_equal(pick(fs, PICK_ABSENT, NO_FILE), NO_FILE);
	for (uint32_t round = 0; round < 2; round++)
		for (uint32_t i = 0; i < 130; i++) {
			assert_int_equal(pick(fs, PICK_EXISTING, NO_FILE), i);
			fileset_give(fs, i, FILE_EXISTS);
		}

	/* A busy file is passed over; the rotor goes on behind the file whose turn it was. */
	assert_int_equal(pick(fs, PICK_EXISTING, 1), 1);
	assert_int_equal(pick(fs, PICK_EXISTING, NO_FILE), 0);
	assert_int_equal(pick(fs, PICK_EXISTING, NO_FILE), 2);
	assert_int_equal(pick(fs, PICK_EXISTING, NO_FILE), 3);
	fileset_give(fs, 1, FILE_EXISTS);

	/* Open files are taken by PICK_EXISTING and not by PICK_CLOSED. */
	fileset_give(fs, 2, FILE_EXISTS + 1);
	assert_int_equal(pick(fs, PICK_CLOSED, 2), 4);
	assert_int_equal(pick(fs, PICK_EXISTING, 2), 2);

	/* What is deleted is found by those who create, in order, from a rotor of their own. */
	fileset_give(fs, 4, 0);
	fileset_give(fs, 3, 0);
	assert_int_equal(pick(fs, PICK_ABSENT, NO_FILE), 3);
	assert_int_equal(pick(fs, PICK_ABSENT, NO_FILE), 4);
	fileset_give(fs, 4, FILE_EXISTS);
	assert_int_equal(pick(fs, PICK_EXISTING, 129), 129);
	assert_int_equal(pick(fs, PICK_EXISTING, 129), 1);
	fileset_free(fs);
}

/* A search for a closed file gives up when all are open, and does not wait. */
static void test_all_open(void **state)
{
	struct fileset *fs = small(100);

	(void)state;
	for (uint32_t i = 0; i < 130; i++)
		fileset_give(fs, i, FILE_EXISTS + 1);
	assert_int_equal(pick(fs, PICK_CLOSED, NO_FILE), NO_FILE);
	fileset_free(fs);
}

static bool go_on(const struct fileset *fs, uint64_t files, uint64_t bytes, double seconds)
{
	(void)fs, (void)files, (void)bytes, (void)seconds;
	return true;
}

static bool create(struct fileset *fs, struct flow_error *error)
{
	return fileset_create(fs, 9, false, go_on, error);
}

static void test_create_and_verify(void **state)
{
	struct fileset *fs = small(60);
	struct flow_error error = {""};
	struct stat st;
	uint32_t found = 0, existing = NO_FILE;
	char data[3000];

	(void)state;
	for (int again = 0; again < 2; again++) { /* what stood there goes */
		if (!create(fs, &error))
			fail_msg("%s", error.text);
		found = 0;
		for (uint32_t i = 0; i < 130; i++) {
			bool exists = fileset_state(fs, i) & FILE_EXISTS;

			assert_int_equal(stat(file_path(fs, i), &st) == 0, exists);
			if (!exists)
				continue;
			assert_int_equal(st.st_size, 3000);
			existing = i;
			found++;
		}
		assert_int_equal(found, fs->existing);
	}
	assert_true(fileset_verify(fs, 9, &error));

	/* The data cannot be compressed away. */
	int fd = open(file_path(fs, existing), O_RDWR), zeros = 0;

	assert_int_equal(read(fd, data, sizeof data), (int)sizeof data);
	for (size_t i = 0; i < sizeof data; i++)
		zeros += data[i] == 0;
	assert_true(zeros < 60);

	/* Every file of another size than it should have is seen, as is another prealloc. */
	for (uint32_t i = 0; i < 130; i++)
		if (fileset_state(fs, i) & FILE_EXISTS)
			assert_int_equal(truncate(file_path(fs, i), 2999), 0);
	assert_false(fileset_verify(fs, 9, &error));
	assert_holds(error.text, "of another size");
	close(fd);
	fileset_free(fs);

	fs = small(100);
	assert_false(fileset_verify(fs, 9, &error));
	assert_holds(error.text, "create the files with the same workload, --seed and --set");
	assert_true(fileset_remove(fs, &error));
	assert_int_equal(access(fs->root, F_OK), -1);
	fileset_free(fs);
}

/* Reuse: what fits stays, the rest is put right. */
static void test_reuse(void **state)
{
	struct fileset *fs = small(100);
	struct flow_error error = {""};
	struct stat before, after;

	(void)state;
	assert_true(create(fs, &error));
	assert_int_equal(stat(file_path(fs, 1), &before), 0);
	assert_int_equal(truncate(file_path(fs, 2), 10), 0);
	assert_int_equal(truncate(file_path(fs, 3), 5000), 0);
	assert_int_equal(unlink(file_path(fs, 4)), 0);
	assert_false(fileset_verify(fs, 9, &error));
	fs->spec.reuse = true;
	if (!create(fs, &error))
		fail_msg("%s", error.text);
	for (uint32_t i = 0; i < 130; i++) {
		assert_int_equal(stat(file_path(fs, i), &after), 0);
		assert_int_equal(after.st_size, 3000);
	}
	assert_int_equal(stat(file_path(fs, 1), &after), 0);
	assert_int_equal(after.st_ino, before.st_ino);
	assert_true(fileset_remove(fs, &error));
	fileset_free(fs);
}

/* Also of files that do not exist yet something must be there. */
static void test_verify_directories(void **state)
{
	struct fileset *fs = small(0);
	struct flow_error error = {""};

	(void)state;
	assert_true(create(fs, &error));
	assert_true(fileset_verify(fs, 9, &error));
	assert_true(fileset_remove(fs, &error));
	assert_false(fileset_verify(fs, 9, &error));
	assert_holds(error.text, "(missing)");
	fileset_free(fs);
}

/* A directory that is not a fileset's is not touched. */
static void test_foreign_files(void **state)
{
	struct fileset *fs = small(100);
	struct flow_error error = {""};
	/* At the top, and in the directory that is looked at first or last. */
	static const char *const below[] = {"", "/00000001", "/00000002", "/00000003"};
	char directory[FILESET_PATH], foreign[FILESET_PATH + 16];

	(void)state;
	assert_true(create(fs, &error));
	for (unsigned i = 0; i < sizeof below / sizeof *below; i++) {
		snprintf(directory, sizeof directory, "%s%s", fs->root, below[i]);
		snprintf(foreign, sizeof foreign, "%s/diary.txt", directory);

		int fd = open(foreign, O_CREAT | O_WRONLY, 0600);

		assert_true(fd >= 0);
		close(fd);
		assert_false(create(fs, &error));
		assert_holds(error.text,
			"holds 'diary.txt', which is not a file of a fileset; remove it");
		for (uint32_t file = 0; file < fs->entries; file++)
			assert_int_equal(access(file_path(fs, file), F_OK), 0);
		assert_int_equal(strncmp(error.text, directory, strlen(directory)), 0);
		assert_int_equal(unlink(foreign), 0);
	}
	assert_true(fileset_remove(fs, &error));
	assert_int_equal(access(fs->root, F_OK), -1);
	fileset_free(fs);
}

static void test_missing_path(void **state)
{
	const struct fileset_spec spec = {
		.name = "f", .path = "/nonexistent", .entries = 3, .dirwidth = 3, .prealloc = 100};
	struct fileset *fs = make(&spec, 1);
	struct flow_error error;

	(void)state;
	assert_false(create(fs, &error));
	assert_holds(error.text, "mkdir /nonexistent/f: No such file or directory; path= must be");
	fileset_free(fs);
}

/* The paper's largest fileset stays small in memory. */
static void test_four_million(void **state)
{
	const struct fileset_spec spec = {.name = "f",
		.path = "/t",
		.entries = 4000000,
		.dirwidth = 1000,
		.size.value = 4096,
		.prealloc = 100};
	struct fileset *fs = make(&spec, 1);

	(void)state;
	assert_int_equal(fs->entries, 4000000);
	assert_int_equal(fs->directories, 4000);
	assert_true(fs->state_bytes < 33000000);
	assert_string_equal(file_path(fs, 3999999), "/t/f/00004000/00001000");
	fileset_free(fs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_constant_tree),
		cmocka_unit_test(test_single_file),
		cmocka_unit_test(test_gamma_tree),
		cmocka_unit_test(test_seed),
		cmocka_unit_test(test_rotation),
		cmocka_unit_test(test_all_open),
		cmocka_unit_test(test_create_and_verify),
		cmocka_unit_test(test_reuse),
		cmocka_unit_test(test_verify_directories),
		cmocka_unit_test(test_foreign_files),
		cmocka_unit_test(test_missing_path),
		cmocka_unit_test(test_four_million),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
