/* SPDX-License-Identifier: BSD-3-Clause */
/* One good example of each thing that an S3 volume stores: for tests, and as seeds of the fuzzer.
 */
#ifndef USERBLK_TESTS_UNIT_S3_SAMPLES_H
#define USERBLK_TESTS_UNIT_S3_SAMPLES_H

#include "backends/s3/base/bytes.h"
#include "backends/s3/format/format.h"

extern const uint8_t sample_uuid[S3_UUID];

/* All of them append to out. A clone with two ancestors. */
void sample_super(struct s3_buffer *out);
/* A log object's header with a record of each kind; with other flags its data is transformed. */
void sample_header(struct s3_buffer *out, uint64_t id, uint32_t flags);
void sample_summary(struct s3_buffer *out);
void sample_root(struct s3_buffer *out, bool light);
/* A table of 100 objects with snapshots, and region 1 of a map that refers to it. */
void sample_map(struct s3_buffer *table, struct s3_buffer *region);

#endif
