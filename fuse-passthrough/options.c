/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

struct options options;

static_assert(offsetof(struct options, session) == 0, "SESSION_OPTION_TABLE counts on it");

static const struct fuse_opt option_table[] = {
	SESSION_OPTION_TABLE,
	OPTION_FLAG(struct options, "passthrough", passthrough),
	OPTION_VALUE(struct options, "passthrough", passthrough_when),
	{"noatime", offsetof(struct options, noatime), 1},
	{"atime", offsetof(struct options, noatime), 0},
	{"nodiratime", offsetof(struct options, nodiratime), 1},
	{"diratime", offsetof(struct options, nodiratime), 0},
	FUSE_OPT_END,
};

static const char help_before[] = "usage: " NAME " [options] SOURCE MOUNTPOINT\n"
				  "\n"
				  "Shows the directory SOURCE at MOUNTPOINT, through FUSE.\n"
				  "\n";

static const char help_own[] =
	"    --passthrough        the kernel reads and writes SOURCE itself\n"
	"    --passthrough=auto   the same if the kernel allows it\n";

static int take_argument(void *data, const char *arg, int key, struct fuse_args *rest)
{
	struct options *o = data;
	char **const operands[] = {&o->source, &o->session.mount_point, NULL};

	(void)rest;
	return session_option_rest(arg, key, operands, "SOURCE and MOUNTPOINT");
}

static bool check_options(struct options *o)
{
	if (!session_options_check(&o->session))
		return false;
	if (o->passthrough_when && strcmp(o->passthrough_when, "auto") != 0) {
		session_warn("passthrough=%s: give auto, or no value", o->passthrough_when);
		return false;
	}
	if (o->passthrough && !HAVE_PASSTHROUGH) {
		session_warn(
			"passthrough: this program was built with libfuse %d.%d; build it with "
			"3.17 or later",
			FUSE_MAJOR_VERSION, FUSE_MINOR_VERSION);
		return false;
	}
	if (!o->source || !o->session.mount_point) {
		session_warn(
			"%s is missing; see " NAME " --help", o->source ? "MOUNTPOINT" : "SOURCE");
		return false;
	}
	return true;
}

bool options_read(struct fuse_args *args)
{
	if (fuse_opt_parse(args, &options, option_table, take_argument) == -1)
		return false;
	return options.session.help || options.session.version || check_options(&options);
}

void options_print_help(void)
{
	if (options.session.help)
		session_print_help(help_before, help_own);
	else
		session_print_version();
}

void options_free(void)
{
	session_options_free(&options.session);
	free(options.source);
	free(options.passthrough_when);
}
