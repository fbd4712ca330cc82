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

$(PLUGIN_LIBS): $(B)/plugins/%.so: $(B)/plugins/%.o $(B)/plugins/nbdkit.o $(BACKEND_OBJS)
	$(CC) $(CFLAGS_ALL) -shared -Wl,-z,defs -Wl,-z,now $^ -o $@ $(LDFLAGS)

# Where `nbdkit ./plugins/NAME.so` looks in a checkout.
PLUGIN_LINKS := $(if $(filter host,$(TARGET)),$(PLUGINS:%=plugins/%.so))
$(PLUGIN_LINKS): plugins/%.so: $(B)/plugins/%.so
	ln -sfn ../$< $@

plugins: $(PLUGIN_LIBS) $(PLUGIN_LINKS) ## build the nbdkit plugins
.PHONY: plugins
all: plugins

# ---- unit tests (C) ---------------------------------------------------------

UNIT_TESTS := $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_*.c))

-include $(shell find $(B) -name '*.d' 2>/dev/null)
