/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the adapter for tcmu-runner makes of commands that the runner answers, with a ring as the
 * kernel would have it and the runner's own way to write an answer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <scsi/scsi.h>

#include "tcmu-handlers/commands.h"
#include "tcmu-handlers/ring.h"

#define RING_BYTES 1024
#define ENTRY	   256

static union {
	struct tcmu_mailbox mailbox;
	uint8_t bytes[sizeof(struct tcmu_mailbox) + RING_BYTES];
} memory;

static struct device device;
static uint8_t answer[256], list[2048];
static uint8_t cdb[16]; /* a copy, as the runner makes it */
static struct iovec iov;
static struct tcmulib_cmd lib;

static int set_up(void **state)
{
	(void)state;
	memset(&memory, 0, sizeof memory);
	memory.mailbox.flags = TCMU_MAILBOX_FLAG_CAP_READ_LEN;
	memory.mailbox.cmdr_off = sizeof(struct tcmu_mailbox);
	memory.mailbox.cmdr_size = RING_BYTES;
	memset(&device, 0, sizeof device);
	device.ring = &memory.mailbox;
	memset(answer, 'x', sizeof answer);
	memset(list, 0, sizeof list);
	memset(&lib, 0, sizeof lib);
	return 0;
}

/* The kernel adds an entry of operation OP at the ring's head. */
static struct tcmu_cmd_entry *add_entry(enum tcmu_opcode op)
{
	uint32_t at = memory.mailbox.cmdr_off + memory.mailbox.cmd_head;
	struct tcmu_cmd_entry *entry = (void *)(memory.bytes + at);

	memset(entry, 0, ENTRY);
	entry->hdr.len_op = ENTRY | op;
	memory.mailbox.cmd_head = (memory.mailbox.cmd_head + ENTRY) % RING_BYTES;
	return entry;
}

/* An INQUIRY for ROOM bytes, in the newest entry. page: -1: the standard data. */
static void inquire(int page, uint8_t room)
{
	iov = (struct iovec){answer, room};
	lib.cdb = cdb;
	lib.iovec = &iov;
	lib.iov_cnt = 1;
	memset(cdb, 0, sizeof cdb);
	lib.cdb[0] = INQUIRY;
	lib.cdb[1] = page >= 0;
	lib.cdb[2] = page >= 0 ? (uint8_t)page : 0;
	lib.cdb[4] = room;
	conform_inquiry(&device, &lib);
}

/* As the runner answers: COUNT bytes of 0x55. */
static void runner_answers(size_t count)
{
	uint8_t bytes[64];

	memset(bytes, 0x55, sizeof bytes);
	tcmu_memcpy_into_iovec(lib.iovec, lib.iov_cnt, bytes, count);
}

static void assert_ends(const struct tcmu_cmd_entry *entry, uint32_t length)
{
	assert_true(entry->hdr.uflags & TCMU_UFLAG_READ_LEN);
	assert_int_equal(entry->rsp.read_len, length);
}

static void test_standard_data(void **state)
{
	static const uint8_t versions[] = {0x03, 0x00, 0x04, 0xc0};
	struct tcmu_cmd_entry *entry = add_entry(TCMU_OP_CMD);

	(void)state;
	inquire(-1, 255);
	runner_answers(36);
	for (size_t i = 0; i < 255; i++) {
		uint8_t expected = i < 36 ? 0x55 : 0;

		if (i == 4)
			expected = 91;
		if (i >= 58 && i < 58 + sizeof versions)
			expected = versions[i - 58];
		assert_int_equal(answer[i], expected);
	}
	assert_int_equal(answer[255], 'x');
	assert_ends(entry, 96);
}

static void test_less_memory_than_standard_data(void **state)
{
	static const uint8_t rooms[] = {1, 4, 5, 36, 59, 95};

	(void)state;
	for (size_t i = 0; i < sizeof rooms; i++) {
		set_up(NULL);
		struct tcmu_cmd_entry *entry = add_entry(TCMU_OP_CMD);

		inquire(-1, rooms[i]);
		runner_answers(36);
		assert_int_equal(answer[0], 0x55);
		assert_int_equal(answer[rooms[i]], 'x');
		if (rooms[i] > 4)
			assert_int_equal(answer[4], 91);
		assert_ends(entry, rooms[i]);
	}
}

static void test_block_limits(void **state)
{
	struct tcmu_cmd_entry *entry = add_entry(TCMU_OP_CMD);

	(void)state;
	inquire(0xb0, 255);
	runner_answers(64);
	for (size_t i = 0; i < 255; i++) {
		uint8_t expected = i < 64 ? 0x55 : 0;

		if (i >= 36 && i < 44)
			expected = i == 42 ? 0x80 : 0; /* 32768 */
		assert_int_equal(answer[i], expected);
	}
	assert_ends(entry, 64);
}

static void test_other_pages(void **state)
{
	static const struct {
		int page;
		uint32_t length; /* 0: the runner's to know */
	} pages[] = {{0x00, 10}, {0x80, 0}, {0x83, 0}, {0xb1, 64}, {0xb2, 8}, {0xc0, 0}};

	(void)state;
	for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
		set_up(NULL);
		struct tcmu_cmd_entry *entry = add_entry(TCMU_OP_CMD);

		inquire(pages[i].page, 255);
		assert_ptr_equal(lib.iovec, &iov);
		if (pages[i].length)
			assert_ends(entry, pages[i].length);
		else
			assert_int_equal(entry->hdr.uflags, 0);
	}
	/* A page without EVPD, which the runner refuses. */
	set_up(NULL);
	struct tcmu_cmd_entry *entry = add_entry(TCMU_OP_CMD);

	iov = (struct iovec){answer, 255};
	memset(cdb, 0, sizeof cdb);
	lib.cdb = cdb;
	lib.iovec = &iov;
	lib.iov_cnt = 1;
	lib.cdb[2] = 0xb0;
	conform_inquiry(&device, &lib);
	assert_int_equal(entry->hdr.uflags, 0);
}

/* The answer of whichever command ends first goes into the oldest entry. */
static void test_beside_other_commands(void **state)
{
	struct tcmu_cmd_entry *first, *second;

	(void)state;
	first = add_entry(TCMU_OP_CMD);
	second = add_entry(TCMU_OP_CMD);
	inquire(0xb0, 255);
	assert_int_equal(first->hdr.uflags, 0);
	assert_int_equal(second->hdr.uflags, 0);

	/* One is answered, and the ring goes around with something to pass over. */
	memory.mailbox.cmd_tail = memory.mailbox.cmd_head;
	add_entry(TCMU_OP_PAD);
	first = add_entry(TCMU_OP_CMD);
	inquire(0xb0, 255);
	assert_ends(first, 64);
}

static void test_kernels_without_lengths(void **state)
{
	struct tcmu_cmd_entry *entry;

	(void)state;
	memory.mailbox.flags = 0;
	entry = add_entry(TCMU_OP_CMD);
	inquire(0xb0, 255);
	assert_int_equal(entry->hdr.uflags, 0);
	device.ring = NULL;
	inquire(0xb0, 255);
	assert_int_equal(entry->hdr.uflags, 0);
	conform_inquiry(NULL, &lib);
	lib.iov_cnt = 0;
	conform_inquiry(&device, &lib);
}

/* The list's first 16 bytes and the type of its first segment. A status. */
static int copy(uint8_t identifier, uint8_t usage, uint16_t targets, uint32_t segments,
	uint8_t type, size_t length)
{
	memset(cdb, 0, sizeof cdb);
	cdb[0] = EXTENDED_COPY;
	cdb[12] = (uint8_t)(length >> 8);
	cdb[13] = (uint8_t)length;
	memset(list, 0, sizeof list);
	list[0] = identifier;
	list[1] = (uint8_t)(usage << 3);
	list[2] = (uint8_t)(targets >> 8);
	list[3] = (uint8_t)targets;
	for (int i = 0; i < 4; i++)
		list[8 + i] = (uint8_t)(segments >> (24 - 8 * i));
	if (16u + targets < sizeof list)
		list[16 + targets] = type;
	iov = (struct iovec){list, length};
	lib.cdb = cdb;
	lib.iovec = &iov;
	lib.iov_cnt = 1;
	return conform_copy(&lib);
}

static void test_copies_with_an_identifier(void **state)
{
	(void)state;
	for (uint8_t usage = 0; usage < 4; usage++) {
		int status = copy(9, usage, 32, 28, 2, 76);

		if (usage == 1) { /* reserved */
			assert_int_equal(status, TCMU_STS_INVALID_PARAM_LIST);
			continue;
		}
		assert_int_equal(status, TCMU_STS_NOT_HANDLED);
		assert_int_equal(list[1], 0x18);
		/* With none there may be none: the runner refuses it. */
		assert_int_equal(list[0], usage == 3 ? 9 : 0);
	}
}

static void test_copies_that_are_wrong(void **state)
{
	static const struct {
		uint16_t targets;
		uint32_t segments;
		uint8_t type;
		size_t length;
		int status;
	} lists[] = {
		{32, 20, 3, 68, TCMU_STS_NOTSUPP_SEG_DESC_TYPE},
		{32, 56, 2, 104, TCMU_STS_TOO_MANY_SEG_DESC},
		/* Lengths that the runner would take modulo 256 and 65536. */
		{32, 256 + 28, 2, 332, TCMU_STS_TOO_MANY_SEG_DESC},
		{32, 65536 + 28, 2, 76, TCMU_STS_INVALID_PARAM_LIST_LEN},
		/* The runner's to refuse. */
		{0, 28, 3, 76, TCMU_STS_NOT_HANDLED},
		{31, 28, 3, 76, TCMU_STS_NOT_HANDLED},
		{32, 7, 3, 76, TCMU_STS_NOT_HANDLED},
		{96, 952, 3, 1064, TCMU_STS_NOT_HANDLED},
		{32, 28, 3, 75, TCMU_STS_NOT_HANDLED},
		{32, 28, 3, 47, TCMU_STS_NOT_HANDLED},
		{32, 28, 3, 15, TCMU_STS_NOT_HANDLED},
		{32, 28, 3, 0, TCMU_STS_NOT_HANDLED},
	};

	(void)state;
	for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
		assert_int_equal(copy(0, 3, lists[i].targets, lists[i].segments, lists[i].type,
					 lists[i].length),
			lists[i].status);
	/* EXTENDED COPY of the longer identifiers, which the runner does not have. */
	lib.cdb[1] = 1;
	list[1] = 0x08;
	assert_int_equal(conform_copy(&lib), TCMU_STS_NOT_HANDLED);
}

/* The length of the descriptors that an UNMAP of so many bytes tells, and is taken for. */
static unsigned unmapped(unsigned told, size_t length, size_t in_one_piece)
{
	memset(cdb, 0, sizeof cdb);
	cdb[0] = UNMAP;
	cdb[7] = (uint8_t)(length >> 8);
	cdb[8] = (uint8_t)length;
	memset(list, 0, sizeof list);
	list[2] = (uint8_t)(told >> 8);
	list[3] = (uint8_t)told;
	iov = (struct iovec){list, in_one_piece};
	lib.cdb = cdb;
	lib.iovec = &iov;
	lib.iov_cnt = 1;
	conform_unmap(&lib);
	return (unsigned)list[2] << 8 | list[3];
}

/* The runner would read on behind the list. */
static void test_unmaps_of_more_than_they_have(void **state)
{
	(void)state;
	assert_int_equal(unmapped(16, 24, 24), 16);
	assert_int_equal(unmapped(16, 40, 40), 16);
	assert_int_equal(unmapped(64, 24, 24), 16);
	assert_int_equal(unmapped(65535, 39, 39), 16);
	assert_int_equal(unmapped(16, 8, 8), 0);
	/* The runner's to refuse, or nothing to look at. */
	assert_int_equal(unmapped(16, 7, 7), 16);
	assert_int_equal(unmapped(16, 24, 4), 16);
	lib.iov_cnt = 0;
	conform_unmap(&lib);
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_unmaps_of_more_than_they_have),
		TEST(test_standard_data),
		TEST(test_less_memory_than_standard_data),
		TEST(test_block_limits),
		TEST(test_other_pages),
		TEST(test_beside_other_commands),
		TEST(test_kernels_without_lengths),
		TEST(test_copies_with_an_identifier),
		TEST(test_copies_that_are_wrong),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
