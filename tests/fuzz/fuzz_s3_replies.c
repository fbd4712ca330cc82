/* SPDX-License-Identifier: BSD-3-Clause */
/* Whatever a store or a role's service answers, its parsers return, leak nothing and stay inside
 * their buffers. */
#include <stdlib.h>
#include <string.h>

#include "backends/s3/client/client.h"
#include "backends/s3/client/json.h"
#include "backends/s3/client/names.h"
#include "backends/s3/client/reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const keys[] = {"a", "b", "a/b"};
	static const char *const names[] = {"Code", "Token"};
	char *values[2] = {NULL};
	const char *text = (const char *)data;
	struct s3_error_reply error;
	struct s3_listing listing;
	struct s3_endpoint endpoint;
	uint64_t first, last, object_size;
	int results[3];
	char line[300];

	s3_parse_error(text, size, &error);
	s3_judge(404, &error, true);
	if (s3_parse_listing(text, size, "", &listing) == 0)
		for (size_t i = 0; i < listing.n_objects; i++)
			s3_key_valid(listing.objects[i].key);
	s3_listing_free(&listing);
	s3_parse_deleted(text, size, keys, 3, results, &error);
	s3_json_strings(text, size, names, values, 2);
	free(values[0]);
	free(values[1]);
	if (size < sizeof line) {
		memcpy(line, data, size);
		line[size] = '\0';
		s3_content_range_parse(line, &first, &last, &object_size);
		s3_endpoint_parse(line, &endpoint);
	}
	return 0;
}
