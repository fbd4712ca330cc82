/* SPDX-License-Identifier: BSD-3-Clause */
#include "wml_internal.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Everything that the parser allocates hangs here and goes at once. */
struct wml_block {
	struct wml_block *next;
	_Alignas(max_align_t) char data[];
};

void *wml_alloc(struct wml *wml, size_t size)
{
	struct wml_block *block = calloc(1, sizeof *block + size);

	if (block == NULL)
		abort();
	block->next = wml->blocks;
	wml->blocks = block;
	return block->data;
}

char *wml_text(struct wml *wml, const char *start, size_t length)
{
	char *text = wml_alloc(wml, length + 1);

	memcpy(text, start, length);
	return text;
}

static bool word_start(int c)
{
	return isalpha(c) || c == '/' || c == '-';
}

static bool word_char(int c)
{
	return isalnum(c) || (c != '\0' && strchr("/._:;-", c) != NULL);
}

static bool name_char(int c)
{
	return isalnum(c) || c == '_';
}

static bool lex_error(struct parser *p, const char *what)
{
	return flow_error_set(p->error, "%s:%d: %s", p->wml->file, p->line, what);
}

const char *wml_variable_name(const char *at, size_t *length, const char **end)
{
	char close = *at == '{' ? '}' : *at == '(' ? ')' : '\0';
	const char *start = at + (close != '\0');
	const char *stop = start;

	while (name_char((unsigned char)*stop))
		stop++;
	if (stop == start || (close != '\0' && *stop != close))
		return NULL;
	*length = (size_t)(stop - start);
	*end = stop + (close != '\0');
	return start;
}

static bool lex_string(struct parser *p)
{
	const char *s = p->at + 1;
	size_t n = 0;

	for (const char *q = s; *q != '"'; q++) {
		if (*q == '\0' || *q == '\n')
			return lex_error(p, "expected a closing \" on the same line");
		if (*q == '\\' && q[1] != '\0')
			q++;
		n++;
	}

	char *text = wml_alloc(p->wml, n + 1);

	for (n = 0; *s != '"'; s++) {
		if (*s == '\\')
			s++;
		text[n++] = *s;
	}
	p->at = s + 1;
	p->token.kind = TOKEN_STRING;
	p->token.text = text;
	return true;
}

static bool lex_int(struct parser *p)
{
	const char *start = p->at;
	char *end;
	int shift = 0;

	errno = 0;
	p->token.integer = strtoll(start, &end, 10);
	if (*end == 'k' || *end == 'm' || *end == 'g')
		shift = *end == 'k' ? 10 : *end == 'm' ? 20 : 30;
	if (shift > 0)
		end++;
	if (word_char((unsigned char)*end)) {
		while (word_char((unsigned char)*end))
			end++;
		return flow_error_set(p->error,
			"%s:%d: expected a whole number with at most one suffix k, m or g, found "
			"'%.*s'",
			p->wml->file, p->line, (int)(end - start), start);
	}
	if (errno == ERANGE || p->token.integer > INT64_MAX >> shift ||
		p->token.integer < INT64_MIN >> shift)
		return flow_error_set(p->error, "%s:%d: expected a number below 2^63, found '%.*s'",
			p->wml->file, p->line, (int)(end - start), start);
	p->token.integer *= INT64_C(1) << shift;
	p->token.kind = TOKEN_INT;
	p->token.text = wml_text(p->wml, start, (size_t)(end - start));
	p->at = end;
	return true;
}

bool wml_next(struct parser *p)
{
	for (;; p->at++) {
		if (*p->at == '#')
			p->at += strcspn(p->at, "\n");
		if (*p->at == '\n')
			p->line++;
		if (*p->at == '\0' || !isspace((unsigned char)*p->at))
			break;
	}
	p->token = (struct token){.kind = TOKEN_END, .line = p->line};

	int c = (unsigned char)*p->at;

	if (c == '\0')
		return true;
	if (c == '"')
		return lex_string(p);
	if (isdigit(c) || (c == '-' && isdigit((unsigned char)p->at[1])))
		return lex_int(p);
	if (c == '$') {
		size_t length;
		const char *end, *name = wml_variable_name(p->at + 1, &length, &end);

		if (name == NULL)
			return lex_error(p, "expected the name of a variable after '$'");
		p->token.kind = TOKEN_VARIABLE;
		p->token.text = wml_text(p->wml, name, length);
		p->at = end;
		return true;
	}

	size_t length = 1;

	if (word_start(c)) {
		p->token.kind = TOKEN_WORD;
		while (word_char((unsigned char)p->at[length]))
			length++;
	} else if (strchr("{}=,()", c) != NULL) {
		p->token.kind = TOKEN_PUNCTUATION;
	} else {
		return flow_error_set(p->error,
			"%s:%d: expected a word, number, \"string\" or $variable, found '%c'",
			p->wml->file, p->line, isprint(c) ? c : '?');
	}
	p->token.text = wml_text(p->wml, p->at, length);
	p->at += length;
	return true;
}

void wml_free(struct wml *wml)
{
	if (wml == NULL)
		return;
	while (wml->blocks != NULL) {
		struct wml_block *block = wml->blocks;

		wml->blocks = block->next;
		free(block);
	}
	free(wml);
}
