/* SPDX-License-Identifier: BSD-3-Clause */
#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/program.h"
#include "programs/exit_codes.h"
#include "programs/io_flusher.h"

static _Atomic bool error_told;

static void host_error(void *opaque, const char *message)
{
	(void)opaque;
	error_told = true;
	warnx("%s", message);
}

const struct backend_host program_host = {.error = host_error};

int program_wrong_option(int option, const char *word)
{
	warnx("%s: %s; see %s --help", word, option == ':' ? "needs a value" : "no such option",
		program_invocation_short_name);
	return EXIT_USAGE;
}

bool program_number(const char *option, const char *text, long min, long max, long *value)
{
	char *end;

	errno = 0;
	*value = strtol(text, &end, 10);
	if (end != text && !*end && !errno && *value >= min && *value <= max)
		return true;
	warnx("--%s=%s: must be a number from %ld to %ld", option, text, min, max);
	return false;
}

int program_open(const struct params *params, struct backend **device)
{
	int r;

	become_io_flusher();
	r = backend_open(params, 0, &program_host, device);
	if (r == 0)
		return 0;
	/* A device reports what a user can fix, and only that. */
	if (error_told)
		return EXIT_USAGE;
	warnx("cannot open the %s device: %s", backend_kind(params_ops(params)).name, strerror(-r));
	return EXIT_FAILURE;
}

void program_tell_counters(struct backend *device)
{
	char counters[1024];

	if (backend_counters_text(device, counters, sizeof counters))
		warnx("counters:%s", counters);
}
