/* SPDX-License-Identifier: BSD-3-Clause */
/* Open and close a volume. */
#ifndef USERBLK_S3_LIFECYCLE_H
#define USERBLK_S3_LIFECYCLE_H

#include <stddef.h>
#include <stdint.h>

#include "backends/backend.h"
#include "backends/s3/core/volume.h"

struct s3_config;

int s3_volume_open(const struct s3_config *config, uint64_t size, const struct backend_host *host,
	struct s3_volume **out);
/* The end begins: an outage of close-timeout= ends all waiting. */
void s3_volume_stop(struct s3_volume *v);
/* 0, or negative errno, reported: something that was acknowledged, or the end, is not in the store.
 */
int s3_volume_close(struct s3_volume *v);
/*
 * The same in two steps, for those that need the volume before it is read or after its end:
 * s3_volume_attach() and s3_volume_load(), s3_volume_finish() and s3_volume_detach().
 */
int s3_volume_load(struct s3_volume *v, const struct s3_config *config, uint64_t size);
int s3_volume_finish(struct s3_volume *v);
/*
 * Name and store of a volume of which nothing is read: for those that look at keys alone. Errors
 * are reported. To be ended with s3_volume_detach().
 */
int s3_volume_attach(
	const struct s3_config *config, const struct backend_host *host, struct s3_volume **out);
void s3_volume_detach(struct s3_volume *v);
size_t s3_volume_counters(struct s3_volume *v, struct backend_counter *counters, size_t max);
/* For layout=log. */
extern const struct s3_layout_ops s3_log_layout;

#endif
