/* SPDX-License-Identifier: BSD-3-Clause */
/* userblk-s3: manages volumes of the S3 device. */
#include <err.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <openssl/crypto.h>

#include "backends/s3/admin/delete.h"
#include "backends/s3/client/credentials.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/config.h"
#include "backends/s3/format/format.h"
#include "backends/s3/format/transform.h"
#include "programs/exit_codes.h"
#include "programs/standard_files.h"
#include "userblk-s3/list.h"
#include "userblk-s3/session.h"

static int refuse_served(const struct options *o)
{
	warnx("volume=%s: a server is listening at control=%s; stop it first", o->config.volume,
		o->config.control);
	return -EBUSY;
}

static int create(const struct options *o, struct answer *answer)
{
	struct s3_config config = o->config;
	int r = session_is_served(o);

	if (r)
		return r < 0 ? r : refuse_served(o);
	config.create = config.exclusive = true;
	config.readonly = false;
	config.snapshot = NULL;
	return session_open(o, &config, "info", answer, NULL);
}

static void show_deletion(void *opaque, uint64_t done, uint64_t total)
{
	progress_show(opaque, done, total);
}

static int delete_volume(const struct options *o, struct answer *answer)
{
	struct s3_removal removal = {.progress = show_deletion, .opaque = &answer->progress};
	struct s3_config config = o->config;
	struct backend_host host = session_host(answer);
	struct params_error error = {0};
	char line[64];
	int r = session_is_served(o), removed;

	if (r)
		return r < 0 ? r : refuse_served(o);
	/* Opened, so that no other program writes to it from now on. */
	config.create = config.readonly = false;
	config.snapshot = NULL;
	config.size = 0;
	config.require_clean_close = !o->take_over;
	config.before_change = s3_volume_may_remove;
	config.before_change_opaque = &removal;
	config.when_closed = s3_volume_note_end;
	r = session_open(o, &config, NULL, answer, &error);
	if (r == -ECANCELED)
		return r;
	/* One that has been deleted in part is no volume, and one that is damaged cannot be opened.
	 */
	if (r && r != -ENOENT && !o->take_over) {
		warnx("%s", error.text);
		return r;
	}
	/* Not one that has got the name since. */
	removal.only = r == 0 || r == -ENOENT;
	removal.remains = o->take_over;
	removed = s3_volume_remove(&config, &host, &removal);
	/* What was not found was something else, such as the file with its key. */
	if (removal.unseen)
		warnx("%s", error.text);
	if (removed)
		return removal.deleted ? -EIO : removed;
	snprintf(line, sizeof line, "deleted_objects %" PRIu64, removal.deleted);
	answer_line(answer, line);
	snprintf(line, sizeof line, "foreign_objects %" PRIu64, removal.foreign);
	answer_line(answer, line);
	return 0;
}

static int rekey(const struct options *o, struct answer *answer)
{
	uint8_t key[S3_KEY_BYTES];
	char request[16 + 2 * sizeof key], label[S3_KEY_MAX];
	struct backend_host host = session_host(answer);
	struct stat st;
	int r = s3_transform_read_key(o->new_key, key);

	if (r == -EINVAL)
		warnx("--new-encryption-key=%s: does not have exactly %zu bytes; create a key with "
		      "head -c %zu /dev/urandom",
			o->new_key, sizeof key, sizeof key);
	else if (r)
		warnx("--new-encryption-key=%s: cannot be read: %s; give the file with the key",
			o->new_key, strerror(-r));
	if (r)
		return -EINVAL;
	snprintf(label, sizeof label, "--new-encryption-key=%s", o->new_key);
	if (stat(o->new_key, &st) == 0)
		s3_warn_if_public(&st, label, &host);
	strcpy(request, "rekey ");
	for (size_t i = 0; i < sizeof key; i++)
		sprintf(request + strlen(request), "%02x", key[i]);
	r = session_perform(o, WAY_WRITE, request, answer);
	OPENSSL_cleanse(key, sizeof key);
	OPENSSL_cleanse(request, sizeof request);
	return r;
}

/* The requests that are made of the command line's operands. */
static int perform(const struct options *o, struct answer *answer)
{
	char request[S3_KEY_MAX + 256];

	switch (o->command) {
	case COMMAND_CREATE:
		return create(o, answer);
	case COMMAND_LIST:
		return list_volumes(o, answer);
	case COMMAND_DELETE:
		return delete_volume(o, answer);
	case COMMAND_INFO:
		return session_perform(o, WAY_READ, "info", answer);
	case COMMAND_CHECK:
		return session_perform(o, WAY_READ, "check", answer);
	case COMMAND_SNAPSHOT_LIST:
		return session_perform(o, WAY_READ, "snapshot-list", answer);
	case COMMAND_SNAPSHOT_CREATE:
		snprintf(request, sizeof request, "snapshot-create %s", o->operands[0]);
		break;
	case COMMAND_SNAPSHOT_DELETE:
		snprintf(request, sizeof request, "snapshot-delete %s", o->operands[0]);
		break;
	case COMMAND_SNAPSHOT_ROLLBACK:
		snprintf(request, sizeof request, "snapshot-rollback %s", o->operands[0]);
		break;
	case COMMAND_CLONE:
		snprintf(request, sizeof request, "clone %s %s %s", o->operands[0],
			o->to_prefix ? o->to_prefix : o->config.prefix, o->operands[1]);
		return session_perform(o, WAY_READ, request, answer);
	case COMMAND_RESIZE:
		snprintf(request, sizeof request, "resize %" PRIu64, o->config.size);
		break;
	case COMMAND_REKEY:
		return rekey(o, answer);
	case COMMAND_GC:
		snprintf(request, sizeof request, "gc");
		break;
	case COMMAND_STATS:
		return session_perform(o, WAY_NONE, "stats", answer);
	case COMMAND_ABORT:
		return session_perform(o, WAY_NONE, "abort", answer);
	case COMMAND_HELP:
	case COMMAND_VERSION:
		return 0;
	}
	return session_perform(o, WAY_WRITE, request, answer);
}

/*
 * Has something gone wrong on the way, or was it refused? opened: for changes, by this program or a
 * server. What the store refuses from then on is no mistake of the user's, and may come in between.
 */
static int exit_code(int r, bool opened)
{
	switch (-r) {
	case 0:
		return 0;
	case EIO:
	case ECANCELED:
	case EPIPE:
	case ENOMEM:
	case ETIMEDOUT:
	case ESHUTDOWN:
	case ENOSPC:
		return EXIT_FAILURE;
	case EACCES:
	case ENXIO:
	case EPROTO:
	case EREMCHG:
		return opened ? EXIT_FAILURE : EXIT_USAGE;
	default:
		return EXIT_USAGE;
	}
}

int main(int argc, char **argv)
{
	struct params_error error;
	struct options o;
	struct answer answer = {.options = &o};
	int r;

	open_standard_files();
	/* A volume must not stay open because the reader of an error has ended. */
	signal(SIGPIPE, SIG_IGN);
	if (options_parse(argc, argv, &o, &error) < 0) {
		warnx("%s", error.text);
		return EXIT_USAGE;
	}
	if (o.command == COMMAND_HELP) {
		options_help();
		return 0;
	}
	if (o.command == COMMAND_VERSION) {
		printf("userblk-s3 %s\n", USERBLK_VERSION);
		return 0;
	}
	answer.progress.what = o.command == COMMAND_CHECK ? "check"
			       : o.command == COMMAND_GC  ? "gc"
							  : "delete";
	answer.progress.bytes = o.command != COMMAND_DELETE;
	r = perform(&o, &answer);
	r = exit_code(r, answer.opened);
	signal(SIGPIPE, SIG_DFL);
	/* What a check has found, although it could not be finished, is worth knowing. */
	if (r == 0 || answer.n_rows)
		answer_print(&answer);
	else
		progress_clear(&answer.progress);
	if (r == 0 && o.command == COMMAND_CHECK && answer_number(&answer, "damaged_objects") > 0)
		r = EXIT_FAILURE;
	if (fflush(stdout) || ferror(stdout)) {
		warn("cannot write the answer");
		r = EXIT_FAILURE;
	}
	answer_free(&answer);
	params_free(o.params);
	return r;
}
