/* SPDX-License-Identifier: BSD-3-Clause */
/* What the lexer, the parser (wml.c) and the values of the workload language share. */
#ifndef FLOW_WML_INTERNAL_H
#define FLOW_WML_INTERNAL_H

#include "wml.h"

enum token_kind {
	TOKEN_END,
	TOKEN_INT,
	TOKEN_WORD,
	TOKEN_STRING,
	TOKEN_VARIABLE,
	TOKEN_PUNCTUATION,
};

struct token {
	enum token_kind kind;
	int line;
	const char *text; /* of the program; for STRING without quotes, for VARIABLE the name */
	int64_t integer;
};

struct parser {
	struct wml *wml;
	const char *at;
	int line;
	struct token token; /* the one looked at */
	struct flow_error *error;
};

/* Zeroed memory that wml_free() frees. Never NULL: a workload file is small, and without memory
 * nothing can run. */
void *wml_alloc(struct wml *wml, size_t size);
/* A copy of length bytes as a string. */
char *wml_text(struct wml *wml, const char *start, size_t length);

/* Reads the next token. */
bool wml_next(struct parser *p);
/* Finds the name of a variable behind '$'; NULL if there is none. */
const char *wml_variable_name(const char *at, size_t *length, const char **end);

/* NULL: the file does not use it. */
struct wml_variable *wml_find_variable(const struct wml *wml, const char *name, size_t length);

#endif
