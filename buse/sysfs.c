/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buse/sysfs.h"

bool sysfs_text(int index, const char *name, char *text, size_t size)
{
	char file[64];
	FILE *stream;

	snprintf(file, sizeof file, "/sys/block/nbd%d/%s", index, name);
	stream = fopen(file, "re");
	if (!stream)
		return false;
	if (!fgets(text, (int)size, stream))
		text[0] = '\0';
	fclose(stream);
	text[strcspn(text, "\n")] = '\0';
	return true;
}

uint64_t sysfs_number(int index, const char *name)
{
	char text[32];

	return sysfs_text(index, name, text, sizeof text) ? strtoull(text, NULL, 10) : 0;
}
