/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef USERBLK_PROCESS_STATE_H
#define USERBLK_PROCESS_STATE_H

#include <stdio.h>
#include <string.h>
#include <sys/types.h>

/* The letter that proc_pid_stat(5) has, Z if its first thread has ended; 0: it cannot be read. */
static inline char process_state(pid_t pid)
{
	char path[32], text[256];
	const char *name_end;
	size_t length;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	length = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[length] = 0;
	name_end = strrchr(text, ')');
	return name_end && name_end[1] == ' ' ? name_end[2] : 0;
}

#endif
