/* SPDX-License-Identifier: BSD-3-Clause */
/* What the programs that repeat operations have in common on their command lines. */
#ifndef OPS_COMMAND_H
#define OPS_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#define EXIT_USAGE 2

/* The name of the program, which its main.c defines. */
extern const char command_name[];

/* One line for the user, like printf. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The value of an option. False: reported. */
bool take_number(
	const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *out);
bool take_seconds(const char *option, const char *text, double least, double *out);
/* One of count words, by its number. */
bool take_word(const char *option, const char *text, const char *const *words, unsigned count,
	unsigned *out);

/* What getopt_long() returned for no option of ours. */
void complain_option(int returned, const char *word);

/* DIRECTORY/NAME as the place of what a program makes: there already if it is only used, else
 * not. False: reported. */
bool take_place(const char *directory, const char *name, bool used, const char *maker, char *out);

#endif
