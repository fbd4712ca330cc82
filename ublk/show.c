/* SPDX-License-Identifier: BSD-3-Clause */
#include "ublk/show.h"

#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "programs/exit_codes.h"
#include "ublk/record.h"

#define CHAR_DEVICES "/sys/class/ublk-char"

/* The driver wants to know by which path the asker sees such a disk. */
#define UNPRIVILEGED "is an unprivileged disk of another program; use that program"

/* What a kernel may offer, and grant to a disk. */
static const struct {
	uint64_t flag;
	const char *name;
} features[] = {
	{UBLK_F_SUPPORT_ZERO_COPY, "SUPPORT_ZERO_COPY"},
	{UBLK_F_NEED_GET_DATA, "NEED_GET_DATA"},
	{UBLK_F_USER_RECOVERY, "USER_RECOVERY"},
	{UBLK_F_USER_RECOVERY_REISSUE, "USER_RECOVERY_REISSUE"},
	{UBLK_F_UNPRIVILEGED_DEV, "UNPRIVILEGED_DEV"},
	{UBLK_F_USER_COPY, "USER_COPY"},
	{UBLK_F_ZONED, "ZONED"},
	{UBLK_F_USER_RECOVERY_FAIL_IO, "USER_RECOVERY_FAIL_IO"},
	{UBLK_F_UPDATE_SIZE, "UPDATE_SIZE"},
	{UBLK_F_AUTO_BUF_REG, "AUTO_BUF_REG"},
	{UBLK_F_QUIESCE, "QUIESCE"},
	{UBLK_F_PER_IO_DAEMON, "PER_IO_DAEMON"},
	{UBLK_F_BUF_REG_OFF_DAEMON, "BUF_REG_OFF_DAEMON"},
	{UBLK_F_BATCH_IO, "BATCH_IO"},
	{UBLK_F_INTEGRITY, "INTEGRITY"},
	{UBLK_F_SAFE_STOP_DEV, "SAFE_STOP_DEV"},
	{UBLK_F_NO_AUTO_PART_SCAN, "NO_AUTO_PART_SCAN"},
	{UBLK_F_SHMEM_ZC, "SHMEM_ZC"},
};

#define FEATURES (sizeof features / sizeof features[0])

/* Their names, each between quotes. */
static void print_features(uint64_t flags, const char *quote)
{
	const char *before = "";

	for (size_t i = 0; i < FEATURES; i++) {
		if (!(flags & features[i].flag))
			continue;
		printf("%s%s%s%s", before, quote, features[i].name, quote);
		before = *quote ? ", " : ",";
	}
}

static const char *state_name(uint16_t state)
{
	switch (state) {
	case UBLK_S_DEV_DEAD:
		return "dead";
	case UBLK_S_DEV_LIVE:
		return "live";
	case UBLK_S_DEV_QUIESCED:
		return "waiting";
	case UBLK_S_DEV_FAIL_IO:
		return "failing";
	default:
		return "unknown";
	}
}

static const char *recovery_name(uint64_t flags)
{
	if (flags & UBLK_F_USER_RECOVERY_REISSUE)
		return "reissue";
	if (flags & UBLK_F_USER_RECOVERY_FAIL_IO)
		return "fail-all";
	return flags & UBLK_F_USER_RECOVERY ? "fail" : "none";
}

/* JSON (RFC 8259): a string. Bytes that are no UTF-8 are passed on as they are. */
static void print_string(const char *text)
{
	putchar('"');
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			printf("\\%c", c);
		else if (c < 0x20)
			printf("\\u%04x", c);
		else
			putchar(c);
	}
	putchar('"');
}

static void print_json(const struct ublksrv_ctrl_dev_info *info, const struct ublk_record *record)
{
	printf("{\"disk\": \"/dev/ublkb%u\", \"number\": %u, \"state\": \"%s\", \"pid\": %d, "
	       "\"queues\": %u, \"depth\": %u, \"max_request\": %u, \"zero_copy\": %s, "
	       "\"recovery\": \"%s\", \"granted\": [",
		info->dev_id, info->dev_id, state_name(info->state), info->ublksrv_pid,
		info->nr_hw_queues, info->queue_depth, info->max_io_buf_bytes,
		info->flags & UBLK_F_AUTO_BUF_REG ? "true" : "false", recovery_name(info->flags));
	print_features(info->flags, "\"");
	printf("], \"arguments\": %s", record->argv ? "" : "null");
	for (int i = 0; i < record->count; i++) {
		printf("%s", i ? ", " : "[");
		print_string(record->argv[i]);
	}
	printf("%s}", record->argv ? "]" : "");
}

static void print_line(const struct ublksrv_ctrl_dev_info *info, const struct ublk_record *record)
{
	printf("/dev/ublkb%u %s pid=%d queues=%u depth=%u max_request=%u zero_copy=%s recovery=%s "
	       "granted=",
		info->dev_id, state_name(info->state), info->ublksrv_pid, info->nr_hw_queues,
		info->queue_depth, info->max_io_buf_bytes,
		info->flags & UBLK_F_AUTO_BUF_REG ? "on" : "off", recovery_name(info->flags));
	print_features(info->flags, "");
	for (int i = 0; i < record->count; i++)
		printf("%s %s", i ? "" : ":", record->argv[i]);
}

void ublk_show_disk(const struct ublksrv_ctrl_dev_info *info, bool json)
{
	struct ublk_record record;

	ublk_record_read(info->dev_id, info->ublksrv_flags, &record);
	(json ? print_json : print_line)(info, &record);
	ublk_record_free(&record);
}

static int compare_numbers(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* Numbers of all disks, ascending; the caller frees. complete: false after an error
 * message. */
static uint32_t *find_disks(size_t *count, bool *complete)
{
	DIR *directory = opendir(CHAR_DEVICES);
	const struct dirent *entry = NULL;
	uint32_t *numbers = NULL;

	*count = 0;
	while (directory && (entry = readdir(directory))) {
		uint32_t number, *more;

		if (sscanf(entry->d_name, "ublkc%" SCNu32, &number) != 1)
			continue;
		more = realloc(numbers, (*count + 1) * sizeof *numbers);
		if (!more)
			break;
		numbers = more;
		numbers[(*count)++] = number;
	}
	if (directory)
		closedir(directory);
	else
		warnx(CHAR_DEVICES ": %s", strerror(errno));
	*complete = directory && !entry;
	if (numbers)
		qsort(numbers, *count, sizeof *numbers, compare_numbers);
	return numbers;
}

int ublk_show_list(struct ublk_control *c, bool json)
{
	size_t count, printed = 0;
	bool complete;
	uint32_t *numbers = find_disks(&count, &complete);
	int code = complete ? 0 : EXIT_FAILURE;

	if (json)
		printf("[");
	for (size_t i = 0; i < count; i++) {
		struct ublksrv_ctrl_dev_info info;
		int r = ublk_control_info(c, numbers[i], &info);

		if (r == -ENODEV) /* gone */
			continue;
		if (r == -EINVAL) {
			warnx("ublk%u: " UNPRIVILEGED, numbers[i]);
			continue;
		}
		if (r < 0) {
			warnx("ublk%u: %s", numbers[i], strerror(-r));
			code = EXIT_FAILURE;
			continue;
		}
		if (json && printed)
			printf(", ");
		ublk_show_disk(&info, json);
		if (!json)
			printf("\n");
		printed++;
	}
	if (json)
		printf("]\n");
	free(numbers);
	return code;
}

int ublk_examine(struct ublk_control *c, uint32_t id, struct ublksrv_ctrl_dev_info *info)
{
	int r = ublk_control_info(c, id, info);

	if (r < 0)
		warnx("ublk%u: %s", id,
			r == -ENODEV   ? "no such disk; see userblk-ublk list"
			: r == -EINVAL ? UNPRIVILEGED
				       : strerror(-r));
	return r < 0 ? EXIT_USAGE : 0;
}

int ublk_show_info(struct ublk_control *c, const struct ublk_options *o)
{
	struct ublksrv_ctrl_dev_info info;
	int r = ublk_examine(c, (uint32_t)o->server.id, &info);

	if (r == 0) {
		ublk_show_disk(&info, o->json);
		printf("\n");
	}
	return r;
}

int ublk_show_features(const struct ublk_control *c, bool json)
{
	printf(json ? "{\"features\": \"0x%" PRIx64 "\"" : "0x%" PRIx64, c->features);
	for (size_t i = 0; i < FEATURES; i++) {
		bool has = c->features & features[i].flag;

		if (json)
			printf(", \"%s\": %s", features[i].name, has ? "true" : "false");
		else if (has)
			printf(" %s", features[i].name);
	}
	printf(json ? "}\n" : "\n");
	return 0;
}

int ublk_open_control(struct ublk_control *c)
{
	int r = ublk_control_open(c);

	switch (-r) {
	case 0:
		return 0;
	case ENOENT:
	case ENXIO:
	case ENODEV:
		warnx(UBLK_CONTROL_PATH ": does not exist; run: modprobe ublk_drv");
		break;
	case EACCES:
	case EPERM:
		warnx(UBLK_CONTROL_PATH ": %s; run as root", strerror(-r));
		break;
	case ENOSYS:
		warnx("io_uring: not allowed by this machine or container; see the sysctl "
		      "kernel.io_uring_disabled");
		break;
	case EOPNOTSUPP:
		warnx(UBLK_CONTROL_PATH ": this kernel's ublk is too old; run Linux 6.5 or later");
		break;
	default:
		warnx(UBLK_CONTROL_PATH ": %s", strerror(-r));
	}
	return EXIT_FAILURE;
}
