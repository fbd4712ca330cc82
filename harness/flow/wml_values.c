/* SPDX-License-Identifier: BSD-3-Clause */
#include "wml_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct wml_variable *wml_find_variable(const struct wml *wml, const char *name, size_t length)
{
	for (struct wml_variable *v = wml->variables; v != NULL; v = v->next)
		if (strncmp(v->name, name, length) == 0 && v->name[length] == '\0')
			return v;
	return NULL;
}

void wml_assign(struct wml_variable *v, const struct wml_value *value)
{
	if (v->pinned)
		return;
	v->value = *value;
	v->defined = true;
}

void wml_reset(struct wml *wml)
{
	for (struct wml_variable *v = wml->variables; v != NULL; v = v->next)
		v->defined = v->pinned;
}

void wml_print(const struct wml_value *value, char *buffer, size_t size)
{
	switch (value->kind) {
	case WML_INT:
		snprintf(buffer, size, "%" PRId64, value->integer);
		break;
	case WML_BOOL:
		snprintf(buffer, size, "%s", value->integer ? "true" : "false");
		break;
	case WML_STRING:
		snprintf(buffer, size, "%s", value->string);
		break;
	case WML_CVAR:
		snprintf(buffer, size,
			"cvar(type=cvar-gamma,parameters=mean:%g;gamma:%g,min=%.0f,max=%.0f,round=%"
			".0f)",
			value->cvar.mean, value->cvar.gamma, value->cvar.min, value->cvar.max,
			value->cvar.round);
		break;
	}
}

char *wml_interpolate(const struct wml *wml, const char *text, int line, struct flow_error *error)
{
	char *out = NULL, value[256];
	size_t size = 0;
	FILE *f = open_memstream(&out, &size);

	if (f == NULL)
		abort();
	while (*text != '\0') {
		size_t length;
		const char *end;
		const char *name = *text == '$' ? wml_variable_name(text + 1, &length, &end) : NULL;

		if (name == NULL) {
			putc(*text++, f);
			continue;
		}

		const struct wml_variable *v = wml_find_variable(wml, name, length);

		if (v == NULL || !v->defined) {
			flow_error_set(error,
				"%s:%d: expected a variable that is set, found '$%.*s'", wml->file,
				line, (int)length, name);
			fclose(f);
			free(out);
			return NULL;
		}
		wml_print(&v->value, value, sizeof value);
		fputs(v->value.kind == WML_STRING ? v->value.string : value, f);
		text = end;
	}
	fclose(f);
	return out;
}

/* The present value of an expression that is there; NULL with an error. */
static const struct wml_value *evaluate(
	const struct wml *wml, const struct wml_expr *expr, struct flow_error *error)
{
	if (expr->variable == NULL)
		return &expr->value;
	if (!expr->variable->defined) {
		flow_error_set(error, "%s:%d: expected $%s to be set before it is used", wml->file,
			expr->line, expr->variable->name);
		return NULL;
	}
	return &expr->variable->value;
}

static bool wrong_kind(const struct wml *wml, const struct wml_expr *expr, const char *what,
	const char *wanted, const struct wml_value *value, struct flow_error *error)
{
	char text[256];

	wml_print(value, text, sizeof text);
	return flow_error_set(error, "%s:%d: expected %s for %s, found '%s'", wml->file, expr->line,
		wanted, what, text);
}

bool wml_int(const struct wml *wml, const struct wml_expr *expr, const char *what, int64_t min,
	int64_t max, int64_t *out, struct flow_error *error)
{
	if (expr->line == 0)
		return true;

	const struct wml_value *value = evaluate(wml, expr, error);

	if (value == NULL)
		return false;
	if (value->kind != WML_INT || value->integer < min || value->integer > max) {
		char wanted[96];

		snprintf(wanted, sizeof wanted, "a number from %" PRId64 " to %" PRId64, min, max);
		return wrong_kind(wml, expr, what, wanted, value, error);
	}
	*out = value->integer;
	return true;
}

bool wml_bool(const struct wml *wml, const struct wml_expr *expr, const char *what, bool *out,
	struct flow_error *error)
{
	if (expr->line == 0)
		return true;

	const struct wml_value *value = evaluate(wml, expr, error);

	if (value == NULL)
		return false;
	if (value->kind != WML_BOOL)
		return wrong_kind(wml, expr, what, "true or false", value, error);
	*out = value->integer;
	return true;
}

bool wml_string(const struct wml *wml, const struct wml_expr *expr, const char *what,
	const char **out, struct flow_error *error)
{
	if (expr->line == 0)
		return true;

	const struct wml_value *value = evaluate(wml, expr, error);

	if (value == NULL)
		return false;
	if (value->kind != WML_STRING || value->string[0] == '\0')
		return wrong_kind(wml, expr, what, "a word or \"string\"", value, error);
	*out = value->string;
	return true;
}

bool wml_number(const struct wml *wml, const struct wml_expr *expr, const char *what,
	struct number *out, struct flow_error *error)
{
	if (expr->line == 0)
		return true;

	const struct wml_value *value = evaluate(wml, expr, error);

	if (value == NULL)
		return false;
	if (value->kind == WML_CVAR) {
		*out = (struct number){.varies = true, .cvar = value->cvar};
		return true;
	}
	if (value->kind != WML_INT || value->integer < 0)
		return wrong_kind(wml, expr, what, "a number not below 0 or a cvar", value, error);
	*out = (struct number){.value = (uint64_t)value->integer};
	return true;
}
