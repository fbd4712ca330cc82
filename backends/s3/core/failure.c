/* SPDX-License-Identifier: BSD-3-Clause */
/* What goes wrong, reported and remembered. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "backends/backend.h"
#include "backends/s3/client/client.h"
#include "backends/s3/core/failure.h"
#include "backends/s3/core/volume.h"

int s3_volume_refuse(struct s3_volume *v, int r, const char *format, ...)
{
	char text[S3_MESSAGE_MAX + 128];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	backend_error(&v->host, "%s", text);
	return r;
}

int s3_volume_refuse_clients(struct s3_volume *v, const char *why)
{
	return s3_volume_refuse(v, -ESTALE,
		"volume=%s: %s, and its clients are still connected and may rely on lost writes; "
		"remove the disk from all of them, then create it again",
		v->name, why);
}

void s3_volume_fail(struct s3_volume *v, int r, const char *format, ...)
{
	char text[S3_MESSAGE_MAX + 128];
	va_list args;
	int none = 0;

	if (atomic_compare_exchange_strong(&v->failed, &none, r)) {
		va_start(args, format);
		vsnprintf(text, sizeof text, format, args);
		va_end(args);
		backend_error(&v->host,
			"volume=%s: %s; all writes fail from now on, and those that were not "
			"flushed may be lost; fix the cause and restart",
			v->name, text);
	}
	v->layout->give_up(v);
}

void s3_volume_fence(struct s3_volume *v, const char *what)
{
	atomic_store(&v->fenced, true);
	s3_volume_fail(v, -EIO, "%s", what);
}
