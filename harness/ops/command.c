/* SPDX-License-Identifier: BSD-3-Clause */
#include "command.h"

#include <err.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/flow/results.h"

bool take_number(const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoull(text, &end, 10);
	if (text[0] >= '0' && text[0] <= '9' && *end == '\0' && !errno && *out >= least &&
		*out <= most)
		return true;
	warnx("--%s %s: give a whole number from %ju to %ju", option, text, (uintmax_t)least,
		(uintmax_t)most);
	return false;
}

static bool take_seconds(const char *option, const char *text, double least, double *out)
{
	char *end;

	*out = strtod(text, &end);
	if (end != text && *end == '\0' && isfinite(*out) && *out >= least && *out <= 86400)
		return true;
	warnx("--%s %s: give seconds from %g to 86400", option, text, least);
	return false;
}

bool take_word(const char *option, const char *text, const char *const *words, unsigned count,
	unsigned *out)
{
	char known[256] = "";
	size_t used = 0;

	for (unsigned i = 0; i < count; i++) {
		if (strcmp(text, words[i]) == 0) {
			*out = i;
			return true;
		}
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s",
			i == 0		 ? ""
			: i + 1 == count ? " or "
					 : ", ",
			words[i]);
	}
	warnx("--%s %s: give %s", option, text, known);
	return false;
}

static bool take_results(const char *path)
{
	const char *refused = results_refused(path);

	if (!refused)
		return true;
	warnx("--json %s: %s; name a file that can be written", path, refused);
	return false;
}

bool take_common(int returned, char **argv, struct common_options *out)
{
	const char *word = argv[optind - 1];

	switch (returned) {
	case COMMON_SECONDS:
		return take_seconds("seconds", optarg, 0, &out->seconds);
	case COMMON_COUNT:
		return take_number("count", optarg, 1, UINT32_MAX, &out->count);
	case COMMON_INTERVAL:
		return take_seconds("interval", optarg, 0.01, &out->interval);
	case COMMON_SEED:
		return take_number("seed", optarg, 0, UINT64_MAX, &out->seed);
	case COMMON_JSON:
		out->json = optarg;
		return take_results(optarg);
	case ':':
		warnx("%s: needs a value; see %s --help", word, command_name);
		return false;
	default:
		warnx("%s: no such option; see %s --help", word, command_name);
		return false;
	}
}

bool take_at_most_one(int argc, char **argv)
{
	if (optind + 1 >= argc)
		return true;
	warnx("%s: one argument too many; DIRECTORY is enough", argv[optind + 1]);
	return false;
}

bool take_place(const char *directory, const char *name, bool used, const char *maker, char *out)
{
	struct stat st;

	if (!directory)
		warnx("DIRECTORY is missing; name an existing directory for the files");
	else if (stat(directory, &st) == -1)
		warnx("%s: %s; DIRECTORY must exist", directory, strerror(errno));
	else if (!S_ISDIR(st.st_mode))
		warnx("%s: not a directory; name one", directory);
	else if (snprintf(out, PATH_MAX, "%s/%s", directory, name) >= PATH_MAX - 256)
		warnx("%s: too long; name a shorter one", directory);
	else if (!used && access(out, F_OK) == 0)
		warnx("%s: exists; remove it, or use its files with --phase run", out);
	else if (used && access(out, F_OK) == -1)
		warnx("%s: does not exist; create it with --phase %s", out, maker);
	else
		return true;
	return false;
}
