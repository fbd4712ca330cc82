/* SPDX-License-Identifier: BSD-3-Clause */
/* The passthrough device on files, loop devices and tmpfs: random requests against memory. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/passthrough_file.h"
#include "tests/unit/support.h"

static unsigned next_random(unsigned *seed)
{
	*seed = *seed * 1103515245u + 12345u;
	return *seed >> 8;
}

/* Cuts memory that begins at an arbitrary address into up to max vectors of arbitrary length. */
static int cut(char *memory, size_t length, struct iovec *iov, int max, unsigned *seed)
{
	int n = 0;

	while (length > 0) {
		size_t take = n == max - 1 ? length : next_random(seed) % (length + 1);

		switch (next_random(seed) % 3) {
		case 0: /* sectors, so that some vectors stay aligned */
			if (take >= 512)
				take &= ~(size_t)511;
			break;
		case 1:
			if (n < max - 1 && next_random(seed) % 4 == 0)
				take = 0;
			break;
		}
		iov[n++] = (struct iovec){memory, take};
		memory += take;
		length -= take;
	}
	return n;
}

struct walk {
	const char *model;
	uint64_t next;
};

static int check_extent(void *opaque, const struct backend_extent *extent)
{
	struct walk *w = opaque;

	assert_int_equal(extent->offset, w->next);
	assert_true(extent->length > 0);
	w->next += extent->length;
	assert_int_equal(extent->hole, extent->zero);
	if (extent->zero)
		for (uint64_t i = 0; i < extent->length; i++)
			assert_int_equal(w->model[extent->offset + i], 0);
	return 0;
}

/* Random requests on the device and on memory; both must agree, also after closing. */
static void compare_with_model(const char *parameters, unsigned seed, int rounds)
{
	char *model = calloc(1, SIZE), *raw = aligned_alloc(4096, SIZE + 4096);
	struct device d;
	struct backend_info info;

	device_open(&d, &passthrough_backend, "%s", parameters);
	assert_int_equal(backend_info(d.backend, &info), 0);
	assert_int_equal(info.size, SIZE);
	{
		/* Whatever was there. */
		assert_int_equal(device_read(&d, model, SIZE, 0), 0);
	}
	for (int i = 0; i < rounds; i++) {
		static const size_t limits[] = {100, 5000, 70000, SIZE};
		struct iovec iov[40];
		uint64_t offset = next_random(&seed) % SIZE;
		uint64_t length = next_random(&seed) % limits[next_random(&seed) % 4] + 1;
		unsigned kind = next_random(&seed) % 12;
		char *memory = raw;

		if (next_random(&seed) % 2)
			offset &= ~(uint64_t)4095;
		if (next_random(&seed) % 2)
			length = (length + 4095) & ~(uint64_t)4095;
		if (next_random(&seed) % 2)
			memory += next_random(&seed) % 4096;
		if (length > SIZE - offset)
			length = SIZE - offset;

		int n = cut(memory, length, iov, 1 + (int)(next_random(&seed) % 40), &seed);
		unsigned fua = next_random(&seed) % 8 ? 0 : BACKEND_FUA;
		int r;

		if (kind < 5) {
			memset(memory, 0xee, length);
			assert_int_equal(backend_readv(d.backend, iov, n, offset), 0);
			if (memcmp(memory, model + offset, length))
				fail_msg("round %d: read of %llu at %llu differs", i,
					(unsigned long long)length, (unsigned long long)offset);
		} else if (kind < 9) {
			fill(memory, length, next_random(&seed));
			assert_int_equal(backend_writev(d.backend, iov, n, offset, fua), 0);
			memcpy(model + offset, memory, length);
		} else if (kind == 9) {
			unsigned flags = fua | (next_random(&seed) & BACKEND_MAY_TRIM) |
					 (next_random(&seed) & BACKEND_FAST_ZERO);

			r = backend_zero(d.backend, offset, length, flags);
			if (r != -EOPNOTSUPP) {
				assert_int_equal(r, 0);
				memset(model + offset, 0, length);
			}
		} else if (kind == 10 && info.can_trim) {
			assert_int_equal(backend_trim(d.backend, offset, length, fua), 0);
			/* The content is undefined now: learn it. */
			assert_int_equal(device_read(&d, model + offset, length, offset), 0);
		} else if (info.can_extents) {
			struct walk w = {model, offset};

			assert_int_equal(
				backend_extents(d.backend, offset, length, 0, check_extent, &w), 0);
			assert_int_equal(w.next, offset + length);
		}
	}
	assert_int_equal(backend_flush(d.backend), 0);
	assert_int_equal(d.reported.errors, 0);
	device_close(&d);

	device_open(&d, &passthrough_backend, "%s;readonly=on", parameters);
	assert_int_equal(device_read(&d, raw, SIZE, 0), 0);
	assert_memory_equal(raw, model, SIZE);
	device_close(&d);
	free(raw);
	free(model);
}

static void test_model_on_files(void **state)
{
	char text[600];

	(void)state;
	for (int direct = 0; direct < 2; direct++) {
		snprintf(text, sizeof text, "%s;direct=%s", scratch_file("model", SIZE),
			direct ? "on" : "off");
		compare_with_model(text, 1 + (unsigned)direct, 1500);
	}
	/* tmpfs knows no FALLOC_FL_ZERO_RANGE: the way round it. */
	FILE *shm = fopen("/dev/shm/userblk-unit-model", "we");

	if (!shm) {
		skip_test("no /dev/shm");
	}
	assert_int_equal(ftruncate(fileno(shm), SIZE), 0);
	fclose(shm);
	compare_with_model("/dev/shm/userblk-unit-model;direct=off", 3, 1000);
	unlink("/dev/shm/userblk-unit-model");
}

static void test_model_on_devices(void **state)
{
	static const unsigned sectors[] = {512, 4096};
	char device[64], text[200];

	(void)state;
	for (int i = 0; i < 2; i++) {
		loop_attach(scratch_file("disk", SIZE), sectors[i], device, sizeof device);
		for (int direct = 0; direct < 2; direct++) {
			snprintf(text, sizeof text, "%s;direct=%s", device, direct ? "on" : "off");
			compare_with_model(text, 10 + (unsigned)(2 * i + direct), 700);
		}
		loop_detach(device);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model_on_files),
		cmocka_unit_test(test_model_on_devices),
	};

	return cmocka_run_group_tests_name("passthrough", tests, NULL, NULL);
}
