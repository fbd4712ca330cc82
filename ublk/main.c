/* SPDX-License-Identifier: BSD-3-Clause */
/* userblk-ublk: serves, lists and removes disks of Linux's ublk driver. */
#include <err.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "programs/exit_codes.h"
#include "programs/standard_files.h"
#include "ublk/claiming.h"
#include "ublk/options.h"
#include "ublk/remove.h"
#include "ublk/replace.h"
#include "ublk/show.h"
#include "ublk/start.h"
#include "ublk/stopping.h"
#include "ublk/syncing.h"

/* After a command that only prints, with its exit code: has all been written? */
static int printed(int code)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return code;
	warn("cannot write the answer");
	return code ? code : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
	/* As they were given: the parser changes the order. */
	char **given = calloc((size_t)argc + 1, sizeof *given);
	struct params_error error;
	struct ublk_options o;
	struct ublk_control c;
	int r;

	if (!given)
		return EXIT_FAILURE;
	open_standard_files();
	/* A disk must not end with the reader of its messages, nor with who waits for it. */
	signal(SIGPIPE, SIG_IGN);
	/* We wait for processes, which an ignored signal would take from us. */
	signal(SIGCHLD, SIG_DFL);
	for (int i = 1; i < argc; i++)
		given[i - 1] = argv[i];
	if (argc > 1 && strcmp(argv[1], UBLK_SYNC_COMMAND) == 0)
		return ublk_sync_for_parent(argv + 2);
	if (argc > 1 && strcmp(argv[1], UBLK_CLAIM_COMMAND) == 0)
		return ublk_claim_for_parent();
	if (ublk_options_parse(argc, argv, &o, &error) < 0) {
		warnx("%s", error.text);
		return EXIT_USAGE;
	}
	switch (o.command) {
	case UBLK_COMMAND_HELP:
		ublk_options_help();
		return printed(0);
	case UBLK_COMMAND_VERSION:
		printf("userblk-ublk %s\n", USERBLK_VERSION);
		return printed(0);
	case UBLK_COMMAND_ADD:
		return ublk_add(&o, given);
	case UBLK_COMMAND_RECOVER:
		return ublk_recover(&o);
	case UBLK_COMMAND_REPLACE:
		return ublk_replace(&o, given);
	default:
		break;
	}
	r = ublk_open_control(&c);
	if (r)
		return o.command == UBLK_COMMAND_STOP ? UBLK_STOP_FAILED : r;
	if (o.command == UBLK_COMMAND_LIST)
		r = printed(ublk_show_list(&c, o.json));
	else if (o.command == UBLK_COMMAND_INFO)
		r = printed(ublk_show_info(&c, &o));
	else if (o.command == UBLK_COMMAND_DELETE)
		r = ublk_delete(&c, &o);
	else if (o.command == UBLK_COMMAND_STOP)
		r = ublk_stop_for_parent(&c, (uint32_t)o.server.id, o.cookie, o.parent);
	else
		r = printed(ublk_show_features(&c, o.json));
	ublk_control_close(&c);
	return r;
}
