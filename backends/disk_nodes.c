/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>

#include "backends/disk_nodes.h"

bool disk_nodes(const char *disk, size_t spare, glob_t *nodes)
{
	char partitions[64];

	*nodes = (glob_t){.gl_offs = spare};
	if (glob(disk, GLOB_DOOFFS, NULL, nodes) != 0)
		return false;
	snprintf(partitions, sizeof partitions, "%sp[0-9]*", disk);
	glob(partitions, GLOB_DOOFFS | GLOB_APPEND, NULL, nodes);
	return true;
}
