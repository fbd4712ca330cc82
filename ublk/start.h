/* SPDX-License-Identifier: BSD-3-Clause */
/* The start of a server: of a new disk, and of one that has lost its server. */
#ifndef USERBLK_UBLK_START_H
#define USERBLK_UBLK_START_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ublk/control.h"
#include "ublk/options.h"
#include "ublk/record.h"

/* ms for which a server that was killed may be seen as living. */
#define UBLK_DEATH_LIMIT_MS 3000

/* What a server of ours does with its disk. */
struct ublk_start {
	struct ublk_control *control;
	const struct ublk_options *options;
	uint64_t cookie;
	const char *directory; /* of the arguments, NULL: this one */
	char *const *argv;
	bool adds;     /* a new disk, which goes again if the command is interrupted */
	bool replaces; /* it must be recorded, or another server takes its place */
	bool recorded;
	const struct ublk_record *before; /* what was recorded of a disk without server; or NULL */
	uint32_t id;			  /* of the disk, once it is recorded */
	int report;			  /* pipe to the process that the user waits for, or -1 */
	int code;			  /* its exit code */
	/* The process that serves the disk as before if this one does not, and how it learns that.
	 */
	pid_t keeper;
	int outcome;
	bool returns; /* this is that process */
	int watch; /* backend_watch() of the device, since before the old server's end; or negative
		    */
};

/* What the keeper hears on the way, besides an exit code. */
#define UBLK_TAKING 254 /* the new server is about to take the queues */
#define UBLK_TAKEN  255 /* it has all of them */

/* All of these return an exit code, after an error message if it is not 0. */

/* The command add. argv: as it was given. */
int ublk_add(const struct ublk_options *o, char *const *argv);
/* The command recover. */
int ublk_recover(const struct ublk_options *o);
/* What the driver has of a disk that is to outlive its server. */
int ublk_examine_survivor(struct ublk_control *c, uint32_t id, struct ublksrv_ctrl_dev_info *info);
/* Begins a server for an existing disk, in the background unless the options say otherwise. */
int ublk_begin_server(struct ublk_start *start, struct ublksrv_ctrl_dev_info *info);
/* Serves an existing disk. */
int ublk_take_over(struct ublk_start *start, const struct ublk_options *o);
/* What a disk was served with. */
int ublk_parse_record(const struct ublk_record *record, uint32_t id, struct ublk_options *o);
/* Serves a disk with what was recorded. */
int ublk_serve_record(
	struct ublk_start *start, const struct ublk_record *record, const struct ublk_options *o);

#endif
