/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Strings out of a JSON object (RFC 8259), which is all that is needed from the services that
 * give credentials. There is no library for it: the device is loaded into other programs'
 * processes, some of which load one of two libraries whose functions have the same names.
 */
#ifndef USERBLK_S3_JSON_H
#define USERBLK_S3_JSON_H

#include <stddef.h>

/*
 * Takes the members names[0..n-1] out of an object; what else is there is skipped. values[i]
 * becomes the text, which the caller frees, also after an error; it stays as it is where the member
 * is missing or no string. 0; -EBADMSG: text is no JSON object, or too deep; -ENOMEM. No value
 * holds a NUL.
 */
int s3_json_strings(
	const char *text, size_t length, const char *const *names, char **values, size_t n);

#endif
