/* SPDX-License-Identifier: BSD-3-Clause */
/* The workload language: what it takes, and what it says about what it does not take. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/flow/wml.h"
#include "harness/flow/workload.h"
#include "tests/unit/support.h"

static struct wml *parse(const char *text)
{
	struct flow_error error;
	struct wml *wml = wml_parse("w.f", text, &error);

	if (!wml)
		fail_msg("%s", error.text);
	return wml;
}

static const struct wml_variable *variable(const struct wml *wml, const char *name)
{
	const struct wml_variable *v = wml->variables;

	while (v && strcmp(v->name, name) != 0)
		v = v->next;
	assert_non_null(v);
	return v;
}

static void assign_all(struct wml *wml)
{
	for (struct wml_statement *s = wml->statements; s; s = s->next)
		if (s->command == CMD_SET)
			wml_assign(s->variable, &s->value);
}

/* Every mistake names file and line, what was expected and what stands there. */
static void test_errors(void **state)
{
	static const struct {
		const char *text, *message;
	} cases[] = {
		{"set $x=1\nfrob\n", "w.f:2: expected a command: set, define, create, run, psrun, "
				     "sleep, system, echo, eventgen or quit, found 'frob'"},
		{"set $x=$x", "w.f:1: expected a value: number, true, false, word, \"string\" or "
			      "cvar(...), found '$x'"},
		{"set $x", "w.f:1: expected '=', found the end of the file"},
		{"set $x=10M", "w.f:1: expected a whole number with at most one suffix k, m or g, "
			       "found '10M'"},
		{"set $x=1.5", "found '1.5'"},
		{"set $x=9223372036854775808", "expected a number below 2^63"},
		{"set $x=9223372036854775807k", "expected a number below 2^63"},
		{"\n\nset $x=\"abc\nrun", "w.f:3: expected a closing \" on the same line"},
		{"set $=1", "w.f:1: expected the name of a variable after '$'"},
		{"set $x=@", "expected a word, number, \"string\" or $variable, found '@'"},
		{"set mode quit never", "expected timeout, alldone or firstdone, found 'never'"},
		{"set $x=cvar(type=uniform)", "expected cvar-gamma, the one type, found 'uniform'"},
		{"set $x=cvar(type=cvar-gamma,parameters=mean:0)",
			"expected mean and gamma of a cvar above 0"},
		{"set $x=cvar(type=cvar-gamma,parameters=men:5)",
			"expected mean:NUMBER;gamma:NUMBER, found 'men:5'"},
		{"create fileset", "w.f:1: expected files after create, found 'fileset'"},
		{"define thread name=a", "expected fileset, file or process, found 'thread'"},
		{"define fileset name=a", "w.f:1: expected attribute path of fileset"},
		{"define file name=a,path=/t,entries=3", "expected an attribute of file: name, "
							 "path, size"},
		{"define fileset name=a,path=/t,leafdirs=3",
			"expected an attribute of fileset: name, path, entries"},
		{"define fileset name=a,path=/t,name=b",
			"w.f:1: expected attribute name once, found it again"},
		{"define process name=p {\n}", "w.f:2: expected thread, found '}'"},
		{"define process name=p {\n thread name=t {\n }\n}", "w.f:3: expected flowop"},
		{"define process name=p", "expected ',' or '{' and the threads of the process, "
					  "found the end of the file"},
		{"define process name=p { thread name=t { flowop copyfile name=c } }",
			"expected a flowop: createfile, openfile,"},
		{"define process name=p { thread name=t { flowop read name=random } }",
			"expected a name that is not a keyword of the language, found 'random'"},
		{"run $seconds", "w.f:1: expected a variable that the file sets, found '$seconds'"},
		{"sleep", "expected a number of seconds after sleep"},
		{"eventgen 5", "expected rate after eventgen, found '5'"},
		{"eventgen rate=fast", "expected a number of events per second, found 'fast'"},
		{"echo hello", "expected a \"string\", found 'hello'"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct flow_error error = {""};
		struct wml *wml = wml_parse("w.f", cases[i].text, &error);

		if (wml)
			fail_msg("taken: %s", cases[i].text);
		assert_holds(error.text, cases[i].message);
	}
}

static void test_values(void **state)
{
	struct wml *wml =
		parse("# a comment\n"
		      "set $int=3k set $big=2g set $neg=-7 set $yes=true set $no = false\n"
		      "set $word=/a/b.c:d;e-f_ set $text=\"a # \\\"b\\\"\"\n"
		      "set $size=cvar(type=cvar-gamma,parameters=mean:8;gamma:2.5,min=1,"
		      "max=9,round=4)");
	char text[256];

	(void)state;
	assign_all(wml);
	assert_int_equal(variable(wml, "int")->value.integer, 3072);
	assert_int_equal(variable(wml, "big")->value.integer, INT64_C(2) << 30);
	assert_int_equal(variable(wml, "neg")->value.integer, -7);
	assert_int_equal(variable(wml, "yes")->value.kind, WML_BOOL);
	assert_true(variable(wml, "yes")->value.integer);
	assert_false(variable(wml, "no")->value.integer);
	assert_string_equal(variable(wml, "word")->value.string, "/a/b.c:d;e-f_");
	assert_string_equal(variable(wml, "text")->value.string, "a # \"b\"");
	wml_print(&variable(wml, "size")->value, text, sizeof text);
	assert_string_equal(
		text, "cvar(type=cvar-gamma,parameters=mean:8;gamma:2.5,min=1,max=9,round=4)");
	wml_free(wml);
}

/* Attributes refer to variables: the value is that of the moment of use. */
static void test_references(void **state)
{
	struct wml *wml = parse("set $n=1 run $n set $n=2");
	const struct wml_statement *set = wml->statements, *run_it = set->next;
	struct flow_error error;
	int64_t n = 0;

	(void)state;
	assert_false(wml_int(wml, &run_it->args[0], "it", 0, 9, &n, &error));
	assert_string_equal(error.text, "w.f:1: expected $n to be set before it is used");
	wml_assign(set->variable, &set->value);
	assert_true(wml_int(wml, &run_it->args[0], "it", 0, 9, &n, &error));
	assert_int_equal(n, 1);
	wml_assign(run_it->next->variable, &run_it->next->value);
	assert_true(wml_int(wml, &run_it->args[0], "it", 0, 9, &n, &error));
	assert_int_equal(n, 2);
	assert_false(wml_int(wml, &run_it->args[0], "it", 3, 9, &n, &error));
	assert_string_equal(error.text, "w.f:1: expected a number from 3 to 9 for it, found '2'");
	wml_free(wml);
}

static void test_pin(void **state)
{
	struct wml *wml = parse("set $n=1 set $dir=/tmp run $n");
	struct flow_error error;

	(void)state;
	assert_true(wml_pin(wml, "n=5k", &error));
	assert_true(wml_pin(wml, "dir=a b=c", &error));
	assign_all(wml);
	assert_int_equal(variable(wml, "n")->value.integer, 5120);
	assert_string_equal(variable(wml, "dir")->value.string, "a b=c");
	wml_reset(wml);
	assert_true(variable(wml, "n")->defined);
	assert_true(wml_pin(wml, "n=cvar(type=cvar-gamma,parameters=mean:7)", &error));
	assert_int_equal(variable(wml, "n")->value.kind, WML_CVAR);

	assert_false(wml_pin(wml, "n", &error));
	assert_string_equal(error.text, "--set n: write NAME=VALUE");
	assert_false(wml_pin(wml, "m=1", &error));
	assert_holds(error.text, "--set m=1: w.f sets no such variable; it sets: dir, n");
	assert_false(wml_pin(wml, "n=cvar(type=x)", &error));
	assert_holds(error.text, "--set n=cvar(type=x): expected cvar-gamma");
	assert_false(wml_pin(wml, "n=cvar(type=cvar-gamma,parameters=mean:7)k", &error));
	assert_string_equal(error.text,
		"--set n=cvar(type=cvar-gamma,parameters=mean:7)k: expected the end of the value, "
		"found 'k'");
	wml_free(wml);
}

/* Its name takes all the room of a message. */
static void test_pin_in_a_file_of_a_long_name(void **state)
{
	struct flow_error error;
	char name[sizeof error.text + 9] = "";

	(void)state;
	memset(name, 'w', sizeof name - 1);

	struct wml *wml = wml_parse(name, "set $n=1 run $n", &error);

	assert_non_null(wml);
	assert_false(wml_pin(wml, "n=cvar(type=x)", &error));
	assert_holds(error.text, "--set n=cvar(type=x): w");
	wml_free(wml);
}

static void test_interpolation(void **state)
{
	struct wml *wml = parse("set $n=12 set $dir=/tmp set $never=1");
	struct flow_error error;

	(void)state;
	wml_assign(wml->statements->variable, &wml->statements->value);
	wml_assign(wml->statements->next->variable, &wml->statements->next->value);

	char *text = wml_interpolate(wml, "$n of ${dir}x $(n)$ 5$", 3, &error);

	assert_string_equal(text, "12 of /tmpx 12$ 5$");
	free(text);
	assert_null(wml_interpolate(wml, "$never", 3, &error));
	assert_string_equal(error.text, "w.f:3: expected a variable that is set, found '$never'");
	wml_free(wml);
}

/* Binds everything a text defines; false with the message in error. */
static bool bind(const char *text, struct flow_error *error)
{
	struct wml *wml = parse(text);
	struct workload w = {.wml = wml};
	bool ok = true;

	assign_all(wml);
	for (struct wml_statement *s = wml->statements; ok && s; s = s->next)
		if (s->command == CMD_DEFINE)
			ok = workload_define(&w, s->object, error);
	ok = ok && workload_bind_files(&w, error) && workload_bind_processes(&w, error);
	workload_free(&w);
	wml_free(wml);
	return ok;
}

#define FILESET "define fileset name=f,path=/t,entries=9,dirwidth=3\n"
#define FLOWOPS(flowops)                                                                           \
	FILESET "define process name=p {\nthread name=t,memsize=4k {\n" flowops "\n} }"

/* What is known only when the values are. */
static void test_binding_errors(void **state)
{
	static const struct {
		const char *text, *message;
	} cases[] = {
		{FILESET FILESET, "w.f:2: expected a new name, found 'f' of the fileset of line 1"},
		{"define fileset name=f,path=/t,entries=9", "w.f:1: expected attribute dirwidth"},
		{"define fileset name=f,path=/t,dirwidth=9", "w.f:1: expected attribute entries"},
		{"define fileset name=f,path=/t,entries=9,dirwidth=1",
			"expected a number from 2 to 4294967295 for dirwidth, found '1'"},
		{"define file name=f,path=/t,prealloc=101",
			"expected a number from 0 to 100 for prealloc, found '101'"},
		{"define file name=f,path=/t,reuse=1",
			"expected true or false for reuse, found '1'"},
		{"define file name=f,path=5", "expected a word or \"string\" for path, found '5'"},
		{"define file name=\"a/b\",path=/t", "expected a name without '/', found 'a/b'"},
		{"define file name=f,path=/t,size=word", "expected a number not below 0 or a cvar "
							 "for size, found 'word'"},
		{FLOWOPS("flowop openfile name=o"), "w.f:4: expected attribute filesetname of "
						    "flowop o (openfile)"},
		{FLOWOPS("flowop openfile name=o,filesetname=g"),
			"w.f:4: expected a fileset that is defined (f), found 'g'"},
		{FLOWOPS("flowop deletefile name=o"), "expected attribute filesetname"},
		{FLOWOPS("flowop read name=o,fd=1"), "expected attribute iosize"},
		{FLOWOPS("flowop read name=o,fd=128,iosize=1k"), "expected a number from 0 to 127"},
		{FLOWOPS("flowop read name=o,fd=1,\niosize=8k"),
			"w.f:5: expected iosize of flowop o up to the thread's memsize=4096, found "
			"8192"},
		{FLOWOPS("flowop finishoncount name=o"), "expected attribute value"},
		{FLOWOPS("flowop hog name=o"), "expected attribute value"},
		{FLOWOPS("flowop aiowrite name=o,filesetname=f,iosize=1k"), "attribute random of "},
		{FLOWOPS("flowop sempost name=o,value=1"), "w.f:4: expected attribute target of "},
		{FLOWOPS("flowop sempost name=o,value=1,target=x"),
			"a semblock for target, found 'x'"},
		{FLOWOPS("flowop semblock name=o,value=40000"),
			"a value from 1 and a highwater up to 32767"},
		{FLOWOPS("flowop finishoncount name=o,value=1,target=x"),
			"expected a flowop of thread t for target, found 'x'"},
		{FLOWOPS("flowop statfile name=o,fd=1\nflowop fsync name=o,fd=1"),
			"w.f:5: expected a new name, found 'o' of a flowop of another type"},
		/* 2^32 of them, and one more than there may be. */
		{FILESET "define process name=p,instances=65536 {\n"
			 "thread name=t,instances=65536 { flowop statfile name=s,filesetname=f } }",
			"w.f:3: expected at most 65536 threads in all, found 4294967296 with "
			"thread t of process p; lower instances"},
		{FILESET "define process name=p { thread name=t,instances=65535 {\n"
			 "flowop statfile name=s,filesetname=f } }\n"
			 "define process name=q,instances=2 {\n"
			 "thread name=u { flowop statfile name=s,filesetname=f } }",
			"w.f:5: expected at most 65536 threads in all, found 65537 with thread u"},
	};
	struct flow_error error;

	(void)state;
	assert_true(bind(FLOWOPS("flowop openfile name=o,filename=f,fd=1"), &error));
	assert_true(
		bind(FILESET "define process name=p,instances=256 { thread name=t,instances=256 {\n"
			     "flowop statfile name=s,filesetname=f } }",
			&error));
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (bind(cases[i].text, &error))
			fail_msg("taken: %s", cases[i].text);
		assert_holds(error.text, cases[i].message);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_references),
		cmocka_unit_test(test_pin),
		cmocka_unit_test(test_pin_in_a_file_of_a_long_name),
		cmocka_unit_test(test_interpolation),
		cmocka_unit_test(test_binding_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
