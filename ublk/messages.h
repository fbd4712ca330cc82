/* SPDX-License-Identifier: BSD-3-Clause */
/* Where a server's messages go. */
#ifndef USERBLK_UBLK_MESSAGES_H
#define USERBLK_UBLK_MESSAGES_H

#include <stdbool.h>

/*
 * A line to standard error, after the program's name. serves: there is a disk, which may not wait
 * for the reader of the line: to syslog if nobody reads it there at once. From any thread.
 * priority: syslog's; also the journal's, if that is standard error.
 */
void ublk_message(bool serves, int priority, const char *line);

#endif
