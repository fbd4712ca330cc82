/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where the answers of the runner, tcmu-runner 1.5.4, are not those of SPC-4 and SBC-3: what a
 * command is changed into before the runner sees it, and how much of an answer the initiator gets.
 */
#include <endian.h>
#include <string.h>

#include <scsi/scsi.h>

#include "tcmu-handlers/commands.h"
#include "tcmu-handlers/ring.h"

static uint16_t get_16(const uint8_t *at)
{
	return (uint16_t)(at[0] << 8 | at[1]);
}

static uint32_t get_32(const uint8_t *at)
{
	return (uint32_t)get_16(at) << 16 | get_16(at + 2);
}

/* ---- INQUIRY ------------------------------------------------------------------ */

/* Standard data: as long as SPC-4 defines it, so that it has the versions below. */
#define STANDARD_LENGTH	  96
#define ADDITIONAL_LENGTH 4 /* the byte that says so */
#define VERSIONS	  58

/* Block limits, page B0h, as long as the runner's answer. */
#define LIMITS_LENGTH	64
#define LIMITS_MAX_SAME 36 /* MAXIMUM WRITE SAME LENGTH, 8 bytes */

/*
 * The initiator gets LENGTH bytes at most. The runner puts the answer of whichever command ends
 * first into the oldest entry of the ring, so only a lone entry is sure to be that of the command
 * that is being served: the thread that calls this is the one that begins commands, so that none
 * which comes now can end before it. Beside others the initiator gets all of its memory, which is
 * zero from there on.
 */
static void end_answer(struct tcmu_mailbox *ring, uint32_t length)
{
	struct tcmu_cmd_entry *entry;
	uint32_t tail, head, next;

	if (!ring || !(ring->flags & TCMU_MAILBOX_FLAG_CAP_READ_LEN))
		return;
	tail = __atomic_load_n(&ring->cmd_tail, __ATOMIC_ACQUIRE);
	head = __atomic_load_n(&ring->cmd_head, __ATOMIC_ACQUIRE);
	for (; tail != head; tail = next) {
		entry = (void *)((uint8_t *)ring + ring->cmdr_off + tail);
		next = (tail + tcmu_hdr_get_len(entry->hdr.len_op)) % ring->cmdr_size;
		if (tcmu_hdr_get_op(entry->hdr.len_op) == TCMU_OP_CMD)
			break;
	}
	if (tail == head || next != head)
		return;
	entry->hdr.uflags |= TCMU_UFLAG_READ_LEN;
	entry->rsp.read_len = length;
}

/*
 * The runner's answer is written around COUNT bytes at AT, which are ours. False: the initiator's
 * memory ends before.
 */
static bool keep_bytes(struct device *d, struct tcmulib_cmd *lib, size_t at, size_t count)
{
	const struct iovec whole = lib->iovec[0];

	if (whole.iov_len < at + count)
		return false;
	d->around[0] = (struct iovec){whole.iov_base, at};
	d->around[1] = (struct iovec){d->dropped, count};
	d->around[2] =
		(struct iovec){(uint8_t *)whole.iov_base + at + count, whole.iov_len - at - count};
	lib->iovec = d->around;
	lib->iov_cnt = 3;
	return true;
}

/* The versions are those of the runner's own standard data and pages. */
static void prepare_standard(struct device *d, struct tcmulib_cmd *lib)
{
	static const uint8_t versions[] = {0x03, 0x00, 0x04, 0xc0}; /* SPC-3, SBC-3 */
	uint8_t *answer = lib->iovec[0].iov_base;
	size_t capacity = lib->iovec[0].iov_len;

	if (!keep_bytes(d, lib, ADDITIONAL_LENGTH, 1))
		return;
	answer[ADDITIONAL_LENGTH] = STANDARD_LENGTH - ADDITIONAL_LENGTH - 1;
	for (size_t i = 0; i < sizeof versions && VERSIONS + i < capacity; i++)
		answer[VERSIONS + i] = versions[i];
}

static void prepare_limits(struct device *d, struct tcmulib_cmd *lib)
{
	uint8_t *answer = lib->iovec[0].iov_base;
	const uint64_t most = htobe64(MAX_SAME);

	if (keep_bytes(d, lib, LIMITS_MAX_SAME, sizeof most))
		memcpy(answer + LIMITS_MAX_SAME, &most, sizeof most);
}

/*
 * Before the runner answers an INQUIRY, from the thread that serves the whole queue. The pages of
 * names have the length that the names have, which the runner alone knows. d: NULL: not open.
 */
void conform_inquiry(struct device *d, struct tcmulib_cmd *lib)
{
	const uint8_t *cdb = lib->cdb;
	uint32_t capacity = get_16(cdb + 3), length;

	/* The runner fills the beginning of an answer, and the initiator gets all of the memory. */
	for (size_t i = 0; i < lib->iov_cnt; i++)
		memset(lib->iovec[i].iov_base, 0, lib->iovec[i].iov_len);
	if (!d || lib->iov_cnt == 0)
		return;
	if (!(cdb[1] & 1)) {
		if (cdb[2])
			return;
		length = STANDARD_LENGTH;
		prepare_standard(d, lib);
	} else {
		switch (cdb[2]) {
		case 0x00: /* the pages that exist, six */
			length = 10;
			break;
		case 0xb0:
			length = LIMITS_LENGTH;
			prepare_limits(d, lib);
			break;
		case 0xb1: /* characteristics */
			length = 64;
			break;
		case 0xb2: /* provisioning */
			length = 8;
			break;
		default:
			return;
		}
	}
	end_answer(d->ring, length < capacity ? length : capacity);
}

/* ---- EXTENDED COPY ------------------------------------------------------------- */

/* The parts of the parameter list, and the most descriptors that the runner announces.
 */
#define COPY_HEADER	16
#define COPY_TARGET	32
#define COPY_SEGMENT	28   /* block device to block device */
#define COPY_MOST_BYTES 1024 /* of descriptors */

/* Bits of byte 1: how the list's identifier in byte 0 is used. */
#define USAGE	       0x18
#define USAGE_RESERVED 0x08
#define USAGE_NONE     0x18

/* Type of a segment. */
#define BLOCK_TO_BLOCK 0x02

/*
 * Before the runner does an EXTENDED COPY. It refuses lists with an identifier, which initiators
 * may use, and keeps 8 bits of the length of the segments. No result is held for an identifier:
 * the runner announces that, so nothing is lost with it. A status, or TCMU_STS_NOT_HANDLED.
 */
int conform_copy(struct tcmulib_cmd *lib)
{
	size_t length = tcmu_cdb_get_xfer_length(lib->cdb);
	uint32_t targets, segments;
	uint8_t *list;

	/* What is copied from the initiator lies in one piece as far as descriptors reach. */
	if (lib->cdb[1] & 0x1f || length < COPY_HEADER || lib->iov_cnt == 0 ||
		lib->iovec[0].iov_len < COPY_HEADER)
		return TCMU_STS_NOT_HANDLED;
	list = lib->iovec[0].iov_base;
	if ((list[1] & USAGE) == USAGE_RESERVED)
		return TCMU_STS_INVALID_PARAM_LIST;
	if ((list[1] & USAGE) != USAGE_NONE) {
		list[0] = 0;
		list[1] |= USAGE_NONE;
	}
	targets = get_16(list + 2);
	segments = get_32(list + 8);
	if (segments > COPY_MOST_BYTES)
		return TCMU_STS_INVALID_PARAM_LIST_LEN;
	/* The runner knows these lengths to be wrong, and what is wrong about targets alone. */
	if (targets == 0 || targets % COPY_TARGET || targets + segments > COPY_MOST_BYTES ||
		segments < 8 || length < COPY_HEADER + targets + segments ||
		lib->iovec[0].iov_len <= COPY_HEADER + targets)
		return TCMU_STS_NOT_HANDLED;
	if (list[COPY_HEADER + targets] != BLOCK_TO_BLOCK)
		return TCMU_STS_NOTSUPP_SEG_DESC_TYPE;
	return segments > COPY_SEGMENT ? TCMU_STS_TOO_MANY_SEG_DESC : TCMU_STS_NOT_HANDLED;
}

/* ---- UNMAP -------------------------------------------------------------------- */

#define UNMAP_HEADER	 8
#define UNMAP_DESCRIPTOR 16

/*
 * A descriptor that the parameter list does not hold as a whole must be ignored (SBC-3). The
 * runner goes by the length that the list itself tells, and would take what lies behind it.
 */
void conform_unmap(struct tcmulib_cmd *lib)
{
	size_t length = tcmu_cdb_get_xfer_length(lib->cdb), whole;
	uint8_t *list;

	if (length < UNMAP_HEADER || lib->iov_cnt == 0 || lib->iovec[0].iov_len < UNMAP_HEADER)
		return;
	list = lib->iovec[0].iov_base;
	whole = (length - UNMAP_HEADER) / UNMAP_DESCRIPTOR * UNMAP_DESCRIPTOR;
	if (get_16(list + 2) <= whole)
		return;
	list[2] = (uint8_t)(whole >> 8);
	list[3] = (uint8_t)whole;
}
