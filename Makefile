# SPDX-License-Identifier: BSD-3-Clause
# One non-recursive makefile. `make help` lists the targets.

.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules
SHELL := /bin/bash
.SHELLFLAGS := -e -o pipefail -c

VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' python/userblk/__init__.py)
PYTHON  ?= /usr/bin/python3

# TARGET names where the programs run: host, or a lab release (trixie), for
# which make runs inside that root file system. Objects never mix.
TARGET ?= host
B := build/$(TARGET)

CC       ?= gcc
ifeq ($(origin CC),default)
CC       := gcc
endif
OPT      ?= -O2 -g
WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
CFLAGS_ALL = -std=c17 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DUSERBLK_VERSION='"$(VERSION)"' \
	$(WARNINGS) $(OPT) -fPIC -fvisibility=hidden -pthread -I. $(CFLAGS)

all: ## build everything for this machine
.PHONY: all

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26
.PHONY: help

# ---- objects ----------------------------------------------------------------

BACKEND_OBJS := $(patsubst %.c,$(B)/%.o,$(wildcard backends/*.c))

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(CPPFLAGS_$(firstword $(subst /, ,$*))) -MMD -MP -c $< -o $@

# ---- nbdkit plugins ---------------------------------------------------------

PLUGINS := null passthrough
PLUGIN_LIBS := $(PLUGINS:%=$(B)/plugins/%.so)

# Without -z defs: the nbdkit_ functions are in the server. RTLD_NOW finds what is missing.
$(PLUGIN_LIBS): $(B)/plugins/%.so: $(B)/plugins/%.o $(B)/plugins/nbdkit.o $(BACKEND_OBJS)
	$(CC) $(CFLAGS_ALL) -shared -Wl,-z,now $^ -o $@ $(LDFLAGS)

# Where `nbdkit ./plugins/NAME.so` looks in a checkout.
PLUGIN_LINKS := $(if $(filter host,$(TARGET)),$(PLUGINS:%=plugins/%.so))
$(PLUGIN_LINKS): plugins/%.so: $(B)/plugins/%.so
	ln -sfn ../$< $@

plugins: $(PLUGIN_LIBS) $(PLUGIN_LINKS) ## build the nbdkit plugins
.PHONY: plugins
all: plugins

# The component suite's second run: the same plugins with the sanitizers inside nbdkit.
SANITIZE := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

plugins-asan:
	$(MAKE) TARGET=asan OPT="$(SANITIZE)" plugins
.PHONY: plugins-asan

test-component: plugins ## test the plugins: a real nbdkit through libnbd and fio
	$(PYTHON) -m pytest -q -p no:cacheprovider tests/component
.PHONY: test-component

test-component-asan: plugins-asan ## the same with the plugins under ASan and UBSan
	USERBLK_PLUGIN_DIR=build/asan/plugins \
	USERBLK_PRELOAD=$$($(CC) -print-file-name=libasan.so):$$($(CC) -print-file-name=libubsan.so) \
	$(PYTHON) -m pytest -q -p no:cacheprovider tests/component
.PHONY: test-component-asan

# ---- install ------------------------------------------------------------------

prefix  ?= /usr/local
mandir  ?= $(prefix)/share/man
# nbdkit looks for plugins in one directory, whatever the prefix is.
plugindir ?= $(shell nbdkit --dump-config | sed -n 's/^plugindir=//p')
MAN_PAGES := $(wildcard docs/man/*.[1-8])

INSTALLED = $(PLUGINS:%=$(DESTDIR)$(plugindir)/nbdkit-userblk-%-plugin.so) \
	$(foreach m,$(MAN_PAGES),$(DESTDIR)$(mandir)/man$(subst .,,$(suffix $m))/$(notdir $m))

install: install-plugins install-man ## put everything where it is looked for (DESTDIR, prefix)
.PHONY: install

install-plugins: $(PLUGIN_LIBS)
	@test -n "$(plugindir)" || { echo "plugindir: nbdkit is not installed; install nbdkit or set plugindir=DIR" >&2; exit 2; }
	install -d $(DESTDIR)$(plugindir)
	for p in $(PLUGINS); do \
		install -m 644 $(B)/plugins/$$p.so $(DESTDIR)$(plugindir)/nbdkit-userblk-$$p-plugin.so; done
.PHONY: install-plugins

install-man:
	for m in $(MAN_PAGES); do \
		install -D -m 644 $$m $(DESTDIR)$(mandir)/man$${m##*.}/$${m##*/}; done
.PHONY: install-man

uninstall: ## remove what install put there
	rm -f $(INSTALLED)
.PHONY: uninstall

# ---- unit tests (C) ---------------------------------------------------------

UNIT_TESTS := $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_*.c))

-include $(shell find $(B) -name '*.d' 2>/dev/null)
