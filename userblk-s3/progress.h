/* SPDX-License-Identifier: BSD-3-Clause */
/* A bar on standard error that tells how far something is, if that is a terminal. */
#ifndef USERBLK_S3_PROGRESS_H
#define USERBLK_S3_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
	const char *what; /* "check" */
	bool bytes;	  /* what is counted; else objects */
	bool shown;
	int terminal;	/* is there one? 0: not looked yet, 1: yes, -1: no */
	uint64_t began; /* ns, monotonic; 0: not yet */
	uint64_t first; /* how much was done then */
};

void progress_show(struct progress *p, uint64_t done, uint64_t total);
/* Removes it, so that something else can be printed. */
void progress_clear(struct progress *p);

/* "1.5 GiB". out has 32 bytes. */
const char *format_bytes(uint64_t bytes, char *out);

#endif
