/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The parts of the adapter to each other: tcmu.c has a device from its configuration to its end,
 * commands.c does what initiators ask of it, conformance.c corrects what the runner answers itself,
 * ending.c (ending.h) tells a device that waits that it has to end.
 */
#ifndef USERBLK_TCMU_COMMANDS_H
#define USERBLK_TCMU_COMMANDS_H

#include <stdatomic.h>

#include <tcmu-runner.h>
#include <libtcmu.h>
#include <tcmur_device.h>

#include "tcmu-handlers/tcmu_adapter.h"
#include "workers/workers.h"

/*
 * The runner turns WRITE SAME with UNMAP into unmap calls if address and length
 * are multiples of this (0, its default, ends the daemon by SIGFPE), and then
 * loses their errors, although it announces that unmapped blocks read as
 * zeroes. So the alignment is one that no length has; see command_look(). The
 * field is one of 31 bits, so that initiators see 0, which is true.
 */
#define UNMAP_ALIGNMENT (1u << 31)

/*
 * Blocks of one UNMAP and of one WRITE SAME. They end long before an initiator loses its patience,
 * also where zeroes have to be written.
 */
#define MAX_UNMAP (1u << 20)
#define MAX_SAME  (1u << 15)

/* The runner's worker threads of each device; of ours, as many unless the cfgstring says otherwise.
 */
#define DEFAULT_THREADS 16

struct ending;
struct tcmu_mailbox;

/* What the runner keeps for us with each of its devices. */
struct device {
	struct params *params;
	struct backend *backend;
	struct workers *workers;   /* ours; NULL: the runner's, or none */
	struct workers *same;	   /* of WRITE SAME, where there are none; NULL: not needed yet */
	_Atomic bool write_cache;  /* off: a write is durable when it is acknowledged */
	struct tcmu_mailbox *ring; /* shared with the kernel; NULL: it is not known where */
	struct ending *ending;	   /* NULL: nobody needs to tell the device of it */
	atomic_bool unmap_told;	   /* that it has no effect */
	/* For the one INQUIRY that the runner answers at a time: see conformance.c. */
	struct iovec around[3];
	uint8_t dropped[8];
};

extern struct tcmur_handler tcmu_handler;

/* As in struct tcmur_handler; command_look() is its handle_cmd. */
int command_look(struct tcmu_device *dev, struct tcmur_cmd *cmd);
int command_read(struct tcmu_device *dev, struct tcmur_cmd *cmd, struct iovec *iov, size_t iov_cnt,
	size_t length, off_t offset);
int command_write(struct tcmu_device *dev, struct tcmur_cmd *cmd, struct iovec *iov, size_t iov_cnt,
	size_t length, off_t offset);
int command_flush(struct tcmu_device *dev, struct tcmur_cmd *cmd);
int command_unmap(struct tcmu_device *dev, struct tcmur_cmd *cmd, uint64_t offset, uint64_t length);
#ifdef HAVE_WRITESAME
int command_writesame(struct tcmu_device *dev, struct tcmur_cmd *cmd, uint64_t offset,
	uint64_t length, struct iovec *iov, size_t iov_cnt);
#endif

/* Before the runner answers: see conformance.c. */
void conform_inquiry(struct device *d, struct tcmulib_cmd *lib);
int conform_copy(struct tcmulib_cmd *lib);
void conform_unmap(struct tcmulib_cmd *lib);

#endif
