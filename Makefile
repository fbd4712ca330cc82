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
HARDENING := -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fstack-protector-strong
OPT      ?= -O2 -g $(HARDENING)
RELRO    := -Wl,-z,relro,-z,now
WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
CFLAGS_ALL = -std=c17 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DUSERBLK_VERSION='"$(VERSION)"' \
	$(WARNINGS) $(OPT) -fPIC -fvisibility=hidden -pthread -I. $(CFLAGS)
# What is built with other flags is built again.
FLAGS = $(filter-out ccache,$(CC)) $(VERSION) $(WARNINGS) $(OPT) $(CFLAGS) $(LDFLAGS)
# A line per file, so that what goes wrong is not lost among them; V=1 shows the commands.
COMPILE = $(if $(V),,@echo '  $(if $(filter %.o,$@),CC,LD)  $@';)$(CC) $(CFLAGS_ALL) $(if $(filter %.o,$@),,$(RELRO))

all: ## build everything for this machine
.PHONY: all

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26
.PHONY: help

# ---- what the machine needs -----------------------------------------------------

# By purpose, as configs/packages.csv has them: build, bench, report, lab, s3, test, package.
deps-%: build/deps/%.stamp
	@:

build/deps/%.stamp: configs/packages.csv packaging/install-packages
	@mkdir -p $(@D)
	@packaging/install-packages $*
	$(if $(filter build,$*),@command -v tcmu-runner >/dev/null && tcmu-handlers/get-headers build/host >/dev/null || \
		echo "deps: the tcmu-runner handlers are left out: its headers could not be fetched" >&2)
	@touch $@

.PRECIOUS: build/deps/%.stamp

CHECKERS := build/deps/checkers.stamp
deps: deps-build deps-bench deps-report deps-lab deps-s3 deps-test deps-package $(CHECKERS) ## install what everything here needs, from Debian's packages (root)
.PHONY: deps

$(CHECKERS): tests/requirements.txt build/deps/test.stamp
	$(PYTHON) -m venv --system-site-packages build/venv
	build/venv/bin/pip install -q --disable-pip-version-check -r tests/requirements.txt
	@touch $@

# ---- objects ----------------------------------------------------------------

BACKEND_OBJS := $(patsubst %.c,$(B)/%.o,$(filter-out backends/program.c,$(wildcard backends/*.c)))
# What only programs of their own need, not what others load.
PROGRAM_OBJ := $(B)/backends/program.o

$(B)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(FLAGS)' | cmp -s - $@ || echo '$(FLAGS)' >$@

$(B)/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(COMPILE) $(CPPFLAGS_$(firstword $(subst /, ,$*))) -MMD -MP -c $< -o $@

# ---- S3 device -----------------------------------------------------------------

# Apart from the other devices, which are not to need its libraries. It counts what libcurl sends
# a second time, which libcurl tells since 7.80: without that it would take its own object for
# another writer's. What an older release (Debian 11) is too old for is left out of `all`.
old = $(shell pkg-config --exists '$1' 2>/dev/null && echo yes)
NO_S3 := $(call old,libcurl < 7.85)
NO_UBLK := $(call old,liburing < 2.2)$(NO_S3)
S3_OBJS := $(patsubst %.c,$(B)/%.o,$(wildcard backends/s3/*/*.c))
S3_PACKAGES := libcurl libcrypto expat libzstd libisal
S3_LIBS = $(shell pkg-config --libs $(S3_PACKAGES))
$(S3_OBJS): CFLAGS_ALL += $(shell pkg-config --cflags $(S3_PACKAGES))
# Who serves it needs them.
$(B)/plugins/s3.so $(B)/tcmu-handlers/handler_userblk_s3.so: $(S3_OBJS)
LIBS_s3 = $(S3_LIBS)
# Its client of object stores, which knows nothing of volumes.
S3_CLIENT_OBJS := $(patsubst %.c,$(B)/%.o,$(wildcard backends/s3/client/*.c))
# That of it in whose place the tests put a store in their own process.
S3_STORE_OBJS := $(patsubst %,$(B)/backends/s3/client/%.o,attempt callbacks client hedge messages outcome pool transfer)
# What is stored, and the map: nothing in these sends a request.
S3_FORMAT := backends/s3/base/bytes.c backends/s3/client/names.c $(wildcard backends/s3/format/*.c)
S3_MAP := backends/s3/base/slab.c backends/s3/state/leaf.c $(wildcard backends/s3/state/map*.c backends/s3/state/object*.c)

S3_CLIENT_BENCH := $(B)/tests/bench/s3_client_bench
$(S3_CLIENT_BENCH): %: %.o $(S3_CLIENT_OBJS) $(BACKEND_OBJS)
	$(COMPILE) $^ -o $@ $(LDFLAGS) $(S3_LIBS)

# The client as a program, for its tests.
S3_CLIENT_DRIVER := $(B)/tests/s3/client_driver
$(S3_CLIENT_DRIVER): %: %.o $(S3_CLIENT_OBJS) $(BACKEND_OBJS)
	$(COMPILE) $^ -o $@ $(LDFLAGS) $(S3_LIBS)

s3-client-driver: $(S3_CLIENT_DRIVER)
.PHONY: s3-client-driver

# A volume with what frameworks do not offer, for the tests of that.
S3_VOLUME_DRIVER := $(B)/tests/s3/volume_driver
$(S3_VOLUME_DRIVER): %: %.o $(S3_OBJS) $(BACKEND_OBJS)
	$(COMPILE) $^ -o $@ $(LDFLAGS) $(S3_LIBS)

s3-volume-driver: $(S3_VOLUME_DRIVER)
.PHONY: s3-volume-driver

S3_MAP_BENCH := $(B)/tests/bench/s3_map_bench
$(S3_MAP_BENCH): %: %.o $(patsubst %.c,$(B)/%.o,$(S3_FORMAT) $(S3_MAP))
	$(COMPILE) $^ -o $@ $(LDFLAGS) $(S3_LIBS)

bench-s3-map: $(S3_MAP_BENCH) ## measure memory and time of the S3 device's map, at 1 TiB
	$<
.PHONY: bench-s3-map

S3_TRANSFORM_BENCH := $(B)/tests/bench/s3_transform_bench
$(S3_TRANSFORM_BENCH): %: %.o $(S3_FORMAT:%.c=$(B)/%.o)
	$(COMPILE) $^ -o $@ $(LDFLAGS) $(S3_LIBS)

bench-s3-transform: $(S3_TRANSFORM_BENCH) ## measure the CPU time of the S3 device's compression and encryption
	$<
.PHONY: bench-s3-transform

s3-client-bench: $(S3_CLIENT_BENCH) ## build the benchmark of the S3 client alone
.PHONY: s3-client-bench

# ---- nbdkit plugins ---------------------------------------------------------

PLUGINS := null passthrough $(if $(NO_S3),,s3)
PLUGIN_LIBS := $(PLUGINS:%=$(B)/plugins/%.so)

# Without -z defs: the nbdkit_ functions are in the server. RTLD_NOW finds what is missing.
$(PLUGIN_LIBS): $(B)/plugins/%.so: $(B)/plugins/%.o $(B)/plugins/nbdkit.o $(BACKEND_OBJS)
	$(COMPILE) -shared $^ -o $@ $(LDFLAGS) $(LIBS_$*)

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

NBDKIT_TESTS := $(wildcard tests/component/test_nbdkit_*.py)

test-component: plugins ## test the plugins: a real nbdkit through libnbd and fio
	$(PYTHON) -m pytest -q -rs -p no:cacheprovider $(NBDKIT_TESTS)
.PHONY: test-component

test-component-asan: plugins-asan ## the same with the plugins under ASan and UBSan
	USERBLK_PLUGIN_DIR=build/asan/plugins \
	USERBLK_PRELOAD=$$($(CC) -print-file-name=libasan.so):$$($(CC) -print-file-name=libubsan.so) \
	$(PYTHON) -m pytest -q -rs -p no:cacheprovider $(NBDKIT_TESTS)
.PHONY: test-component-asan

# ---- tcmu-runner handlers ---------------------------------------------------

HANDLERS := null passthrough $(if $(NO_S3),,s3)
HANDLER_LIBS := $(HANDLERS:%=$(B)/tcmu-handlers/handler_userblk_%.so)
HANDLER_OBJS := $(patsubst %.c,$(B)/%.o,$(wildcard tcmu-handlers/*.c))
TCMU_ADAPTER_OBJS := $(B)/tcmu-handlers/tcmu.o $(B)/tcmu-handlers/commands.o

# The headers of exactly the tcmu-runner that is installed: its structs change
# between versions, so that another version rebuilds everything that includes them.
TCMU_BUILD := build/$(if $(filter asan tsan,$(TARGET)),host,$(TARGET))
TCMU_VERSION := $(shell dpkg-query -W -f '$${source:Version}' tcmu-runner 2>/dev/null)
TCMU_HEADERS := $(TCMU_BUILD)/tcmu-$(TCMU_VERSION)
TCMU_STAMP := $(TCMU_BUILD)/tcmu-version
CPPFLAGS_tcmu-handlers = -isystem $(TCMU_HEADERS) \
	$(if $(shell grep -s '(\*writesame)' $(TCMU_HEADERS)/tcmu-runner.h),-DHAVE_WRITESAME)

$(TCMU_STAMP): FORCE
	@mkdir -p $(@D)
	@echo "$(TCMU_VERSION)" | cmp -s - $@ || echo "$(TCMU_VERSION)" >$@
FORCE:
.PHONY: FORCE

$(HANDLER_OBJS): $(TCMU_STAMP)

tcmu-headers: ## fetch the headers of the installed tcmu-runner, from Debian's source package
	@tcmu-handlers/get-headers $(TCMU_BUILD) >/dev/null
.PHONY: tcmu-headers

# The tcmur_ functions are in the daemon, which only logs what it cannot resolve: look here.
$(HANDLER_LIBS): $(B)/tcmu-handlers/handler_userblk_%.so: $(B)/tcmu-handlers/%.o \
		$(TCMU_ADAPTER_OBJS) $(BACKEND_OBJS)
	$(COMPILE) -shared $^ -o $@ $(LDFLAGS) -l:libtcmu.so.2 $(LIBS_$*)
	@missing=$$(comm -23 <(nm -D --undefined-only $@ | awk '$$2 ~ /^tcmu/ { print $$2 }' | sort) \
		<(nm -D --defined-only /usr/bin/tcmu-runner "$$($(CC) -print-file-name=libtcmu.so.2)" | \
			awk 'NF == 3 { print $$3 }' | sort)); \
	test -z "$$missing" || { echo "$@: tcmu-runner has no" $$missing >&2; exit 1; }

# Where `tcmu-runner --handler-path tcmu-handlers` looks in a checkout.
HANDLER_LINKS := $(if $(filter host,$(TARGET)),$(HANDLERS:%=tcmu-handlers/handler_userblk_%.so))
$(HANDLER_LINKS): tcmu-handlers/%.so: $(B)/tcmu-handlers/%.so
	ln -sfn ../$< $@

handlers: $(HANDLER_LIBS) $(HANDLER_LINKS) ## build the tcmu-runner handlers
.PHONY: handlers

# A build fetches nothing.
HANDLERS_HERE := $(if $(wildcard $(TCMU_HEADERS)/VERSION),handlers)
$(HANDLER_OBJS): | tcmu-headers-there
tcmu-headers-there:
	@test -e $(TCMU_HEADERS)/VERSION || { \
		echo "handlers: no headers of tcmu-runner $(TCMU_VERSION) in $(TCMU_HEADERS); run make tcmu-headers" >&2; exit 2; }
.PHONY: tcmu-headers-there
all: $(or $(HANDLERS_HERE),without-handlers)
without-handlers:
	@echo "left out: the tcmu-runner handlers, whose headers are not in $(TCMU_HEADERS) (make tcmu-headers)" >&2
.PHONY: without-handlers

# ---- userblk-flow -------------------------------------------------------------

# The engine for Filebench workload files: docs/flow.md.
FLOW_OBJS := $(patsubst %.c,$(B)/%.o,$(wildcard harness/flow/*.c))
FLOW := $(B)/flow/userblk-flow

$(FLOW): $(FLOW_OBJS)
	@mkdir -p $(@D)
	$(COMPILE) $^ -o $@ $(LDFLAGS) -lm

flow: $(FLOW) ## build the engine for file-system workloads
.PHONY: flow
all: flow

# ---- userblk-openloop ----------------------------------------------------------

# The engine of suite `response`. Random numbers and histograms are those of userblk-flow.
OPENLOOP := $(B)/openloop/userblk-openloop
$(OPENLOOP): $(patsubst %.c,$(B)/%.o,$(wildcard harness/openloop/*.c)) $(B)/harness/flow/random.o $(B)/harness/flow/stats.o
	@mkdir -p $(@D)
	$(COMPILE) $^ -o $@ $(LDFLAGS) -luring -lm

openloop: $(OPENLOOP) ## build the engine of open loops (needs liburing-dev)
.PHONY: openloop
all: $(if $(NO_UBLK),,openloop)

# ---- FUSE passthrough file system ---------------------------------------------

# Of any libfuse from 3.10 on; PKG_CONFIG_PATH chooses another than the system's, with a TARGET of its own.
FUSE := $(B)/fuse-passthrough/userblk-passthrough
# For io_uring; linked in, since it is small and not everywhere.
LIBURING := $(if $(shell pkg-config --exists 'liburing >= 2.2' 2>/dev/null && echo yes),-l:liburing.a)
CPPFLAGS_FUSE = -DFUSE_USE_VERSION=314 $(if $(LIBURING),-DHAVE_LIBURING) $(shell pkg-config --cflags fuse3)
CPPFLAGS_fuse-session = $(CPPFLAGS_FUSE)
CPPFLAGS_fuse-passthrough = $(CPPFLAGS_FUSE)
CPPFLAGS_fuse-nullfs = $(CPPFLAGS_FUSE)
# What both have in common.
FUSE_SESSION_OBJS := $(patsubst %.c,$(B)/%.o,$(filter-out $(if $(LIBURING),,%/rings.c),$(wildcard fuse-session/*.c)))
FUSE_OBJS := $(patsubst %.c,$(B)/%.o,$(wildcard fuse-passthrough/*.c))

$(FUSE): $(FUSE_OBJS) $(FUSE_SESSION_OBJS)
	$(COMPILE) $^ -o $@ $(LDFLAGS) $(shell pkg-config --libs fuse3) $(LIBURING)

fuse-passthrough: $(FUSE) ## build the FUSE passthrough file system (needs libfuse3-dev)
.PHONY: fuse-passthrough

NULLFS := $(B)/fuse-nullfs/userblk-nullfs
NULLFS_OBJS := $(patsubst %.c,$(B)/%.o,$(wildcard fuse-nullfs/*.c))

$(NULLFS): $(NULLFS_OBJS) $(FUSE_SESSION_OBJS)
	$(COMPILE) $^ -o $@ $(LDFLAGS) $(shell pkg-config --libs fuse3) $(LIBURING)

fuse-nullfs: $(NULLFS) ## build the FUSE file system that holds no data (needs libfuse3-dev)
.PHONY: fuse-nullfs
FUSE_HERE := $(if $(shell pkg-config --exists 'fuse3 >= 3.10' 2>/dev/null && echo yes),fuse-passthrough fuse-nullfs)

# A device as one file. It limits its threads, which libfuse does from 3.12 on.
FUSE_DISK := $(B)/fuse-disk/userblk-fuse-disk
FUSE_DISK_OBJS := $(patsubst %.c,$(B)/%.o,$(wildcard fuse-disk/*.c))
CPPFLAGS_fuse-disk = -DFUSE_USE_VERSION=314 $(shell pkg-config --cflags fuse3)

$(FUSE_DISK): $(FUSE_DISK_OBJS) $(PROGRAM_OBJ) $(BACKEND_OBJS)
	$(COMPILE) $^ -o $@ $(LDFLAGS) $(shell pkg-config --libs fuse3)

fuse-disk: $(FUSE_DISK) ## build the server of devices as files through FUSE (needs libfuse3-dev)
.PHONY: fuse-disk
FUSE_HERE += $(if $(shell pkg-config --exists 'fuse3 >= 3.12' 2>/dev/null && echo yes),fuse-disk)
all: $(FUSE_HERE)
FUSE_PROGRAMS := fuse-passthrough fuse-nullfs fuse-disk

# Debian's own sources of the libfuse of other releases, built with io_uring, which Debian leaves out:
# the suite and the version of the source package.
LIBFUSES := 3.17 3.18
LIBFUSE_SOURCE_3.17 := trixie 3.17.2-3
LIBFUSE_SOURCE_3.18 := sid 3.18.3-1
LIBFUSE_STAMPS := $(foreach v,$(LIBFUSES),build/libfuse-$v/$(lastword $(LIBFUSE_SOURCE_$v))/VERSION)

$(LIBFUSE_STAMPS): build/libfuse-%/VERSION: fuse-passthrough/get-libfuse
	fuse-passthrough/get-libfuse $(LIBFUSE_SOURCE_$(*D)) $(@D)

# $(call with_libfuse,VERSION,SUFFIX): make with that library, into build/libfuse-VERSION SUFFIX.
LIBFUSE_DIR = $(CURDIR)/build/libfuse-$1/$(lastword $(LIBFUSE_SOURCE_$1))
with_libfuse = PKG_CONFIG_PATH=$(LIBFUSE_DIR)/lib/pkgconfig $(MAKE) --no-print-directory \
	TARGET=libfuse-$1$2 LDFLAGS=-Wl,-rpath,$(LIBFUSE_DIR)/lib
fuse_pytest = USERBLK_FUSE=build/$1/fuse-passthrough/userblk-passthrough \
	USERBLK_FUSE_DISK=build/$1/fuse-disk/userblk-fuse-disk USERBLK_NULLFS=build/$1/fuse-nullfs/userblk-nullfs $(PYTHON) -m pytest -q -rs -p no:cacheprovider

FUSE_SUITE_TESTS := tests/component/test_fuse_suites.py
FUSE_TESTS := $(filter-out $(FUSE_SUITE_TESTS),$(wildcard tests/component/test_fuse_*.py))

test-fuse: $(FUSE_PROGRAMS) ## test the FUSE programs through real mounts
	$(call fuse_pytest,$(TARGET)) $(FUSE_TESTS)
.PHONY: test-fuse

# DIFFERENTIAL_SECONDS of each mode; DIFFERENTIAL_SEED repeats a run.
DIFFERENTIAL_TESTS := tests/differential/test_differential_fuse.py
DIFFERENTIAL_BLOCK_TESTS := tests/differential/test_differential_block.py
test-differential: libfuse-3.18 plugins s3-server ## random calls on files, and requests to devices, do what an ext4 and a model do
	USERBLK_FUSE_ALL_MODES=1 $(call fuse_pytest,libfuse-3.18) $(DIFFERENTIAL_TESTS) $(DIFFERENTIAL_BLOCK_TESTS)
.PHONY: test-differential

test-differential-long: libfuse-3.18 libfuse-3.17 $(FUSE_PROGRAMS) plugins s3-server ## the same for half an hour in each mode, with each libfuse
	DIFFERENTIAL_SECONDS=1800 USERBLK_FUSE_ALL_MODES=1 $(call fuse_pytest,libfuse-3.18) $(DIFFERENTIAL_TESTS)
	DIFFERENTIAL_SECONDS=1800 $(call fuse_pytest,libfuse-3.17) $(DIFFERENTIAL_TESTS)
	DIFFERENTIAL_SECONDS=1800 $(call fuse_pytest,$(TARGET)) $(DIFFERENTIAL_TESTS)
	DIFFERENTIAL_SECONDS=300 $(call fuse_pytest,$(TARGET)) $(DIFFERENTIAL_BLOCK_TESTS)
.PHONY: test-differential-long

test-fuse-suites: fuse-passthrough fs-suites ## pjdfstest, fsx and stress-ng on it (needs cargo 1.85)
	$(call fuse_pytest,$(TARGET)) $(FUSE_SUITE_TESTS)
.PHONY: test-fuse-suites

# The same tests with a sanitizer in the program.
sanitize = $(if $(filter %asan,$1),$(SANITIZE),$(SANITIZE_THREAD))
test-fuse-asan $(foreach v,$(LIBFUSES),test-fuse-$v-asan): export LSAN_OPTIONS := suppressions=$(CURDIR)/fuse-passthrough/lsan.supp:print_suppressions=0
test-fuse-tsan $(foreach v,$(LIBFUSES),test-fuse-$v-tsan): export TSAN_OPTIONS := suppressions=$(CURDIR)/fuse-passthrough/tsan.supp
test-fuse-asan test-fuse-tsan: test-fuse-%:
	$(MAKE) TARGET=$* OPT="$(call sanitize,$*)" $(FUSE_PROGRAMS)
	$(call fuse_pytest,$*) $(FUSE_TESTS)
.PHONY: test-fuse-asan test-fuse-tsan

# The same with another libfuse, which is to have every mode that its version can have.
define libfuse_targets
libfuse-$1: build/libfuse-$1/$(lastword $(LIBFUSE_SOURCE_$1))/VERSION ## build both against libfuse $1, from Debian's sources
	$(call with_libfuse,$1) $(FUSE_PROGRAMS)

test-fuse-$1: libfuse-$1 ## test them with libfuse $1
	$(call fuse_modes,$1) $(call fuse_pytest,libfuse-$1) $$(FUSE_TESTS)

test-fuse-$1-suites: libfuse-$1 fs-suites ## the suites with libfuse $1
	$(call fuse_modes,$1) $(call fuse_pytest,libfuse-$1) $$(FUSE_SUITE_TESTS)

test-fuse-$1-asan test-fuse-$1-tsan: test-fuse-$1-%: libfuse-$1
	$(call with_libfuse,$1,-$$*) OPT="$$(call sanitize,$$*)" $(FUSE_PROGRAMS)
	$(call fuse_modes,$1) $(call fuse_pytest,libfuse-$1-$$*) $$(FUSE_TESTS)
.PHONY: libfuse-$1 test-fuse-$1 test-fuse-$1-suites test-fuse-$1-asan test-fuse-$1-tsan
endef
fuse_modes = $(if $(filter 3.18,$1),USERBLK_FUSE_ALL_MODES=1)
$(foreach v,$(LIBFUSES),$(eval $(call libfuse_targets,$v)))

# What tests/bench/bench_fuse.py runs.
build/host/tests/bench/metadata: tests/bench/metadata.c
	@mkdir -p $(@D)
	$(COMPILE) $< -o $@ $(LDFLAGS)

bench-fuse-programs: libfuse-3.18 build/host/tests/bench/metadata ## build what tests/bench/bench_fuse.py compares
.PHONY: bench-fuse-programs

# Conformance suites for its tests, from the Rust registry. Debian 12's cargo is too old for
# them; its cargo-web, rustup's and Debian 13's (1.85) are not.
FS_SUITES := build/deps/bin/pjdfstest build/deps/bin/fsx
build/deps/bin/pjdfstest: CRATE_VERSION := 0.2.2
build/deps/bin/fsx: CRATE_VERSION := 0.3.2
# And what userblk-ublk is compared with, without its device in a GPU's memory.
RUBLK := build/deps/bin/rublk
$(RUBLK): CRATE_VERSION := 0.2.15
$(RUBLK): CRATE_OPTIONS := --no-default-features
$(FS_SUITES) $(RUBLK):
	@command -v cargo >/dev/null || { echo "$(@F): needs cargo 1.85 or later; run: apt-get install" \
		"$$(apt-cache show cargo-web >/dev/null 2>&1 && echo cargo-web || echo cargo)" >&2; exit 2; }
	cargo install --locked --quiet --root build/deps --version $(CRATE_VERSION) $(CRATE_OPTIONS) $(@F)

fs-suites: $(FS_SUITES) ## get pjdfstest and fsx for the file system's tests (needs cargo 1.85)
.PHONY: fs-suites

# ---- ublk server ---------------------------------------------------------------

UBLK := $(B)/ublk/userblk-ublk
UBLK_OBJS := $(patsubst %.c,$(B)/%.o,$(wildcard ublk/*.c))

$(UBLK): $(UBLK_OBJS) $(BACKEND_OBJS) $(S3_OBJS)
	$(COMPILE) $^ -o $@ $(LDFLAGS) -luring $(S3_LIBS)

ublk: $(UBLK) ## build the server for Linux's ublk driver (needs liburing-dev)
.PHONY: ublk
all: $(if $(NO_UBLK),,ublk)

# BENCH: options of tests/bench/bench_ublk.py.
bench-ublk: $(RUBLK) ## measure userblk-ublk against rublk in the lab, in pairs (needs cargo 1.85)
	lab/make-in-root ublk
	@mkdir -p results
	lab/run --timeout 0 --share results -- python3 tests/bench/bench_ublk.py --json /results/bench-ublk.json $(BENCH)
.PHONY: bench-ublk

# ---- sequential server -----------------------------------------------------------

BUSE := $(B)/buse/userblk-buse
BUSE_OBJS := $(patsubst %.c,$(B)/%.o,$(wildcard buse/*.c))

$(BUSE): $(BUSE_OBJS) $(PROGRAM_OBJ) $(BACKEND_OBJS)
	$(COMPILE) $^ -o $@ $(LDFLAGS)

buse: $(BUSE) ## build the sequential server on Linux's nbd driver
.PHONY: buse
all: buse

# ---- tool of the S3 device --------------------------------------------------------

S3_TOOL := $(B)/userblk-s3/userblk-s3
S3_TOOL_OBJS := $(patsubst %.c,$(B)/%.o,$(wildcard userblk-s3/*.c))

$(S3_TOOL): $(S3_TOOL_OBJS) $(S3_OBJS) $(BACKEND_OBJS)
	$(COMPILE) $^ -o $@ $(LDFLAGS) $(S3_LIBS)

s3-tool: $(S3_TOOL) ## build the tool for volumes of the S3 device
.PHONY: s3-tool
all: $(if $(NO_S3),,s3-tool)

# ---- lab ----------------------------------------------------------------------

lab: ## build the lab (LAB_KERNEL=stable or backports, LAB_RELEASE=trixie or bullseye) and see that it boots
	lab/run --verbose -- sh -c 'uname -sr; lsblk -d -o NAME,SIZE,ROTA,DISC-MAX,SERIAL "$$LAB_SATA" "$$LAB_NVME"'
.PHONY: lab

lab-shell: ## a prompt in the lab's guest; nothing that is done there stays
	lab/run --verbose --tty --timeout 0 -- bash
.PHONY: lab-shell

lab-programs: ## build everything for the lab's guest, inside its root file system
	lab/make-in-root all
.PHONY: lab-programs

# ---- install ------------------------------------------------------------------

prefix  ?= /usr/local
mandir  ?= $(prefix)/share/man
unitdir ?= $(prefix)/lib/systemd/system
# nbdkit looks for plugins in one directory, whatever the prefix is.
plugindir ?= $(shell nbdkit --dump-config | sed -n 's/^plugindir=//p')
# So does tcmu-runner, in the directory of its own handlers.
handlerdir ?= $(shell dpkg-query -L tcmu-runner 2>/dev/null | sed -n 's,/handler_[a-z_]*\.so$$,,p' | sort -u)
MAN_PAGES := $(wildcard docs/man/*.[1-8])

INSTALLED = $(PLUGINS:%=$(DESTDIR)$(plugindir)/nbdkit-userblk-%-plugin.so) \
	$(HANDLERS:%=$(DESTDIR)$(handlerdir)/handler_userblk_%.so) \
	$(foreach m,$(MAN_PAGES),$(DESTDIR)$(mandir)/man$(subst .,,$(suffix $m))/$(notdir $m))

install: install-plugins $(HANDLERS_HERE:%=install-%) $(FUSE_HERE:%=install-%) install-flow install-openloop install-ublk install-buse install-s3-tool install-python install-man ## put everything where it is looked for (DESTDIR, prefix)
.PHONY: install

install-plugins: $(PLUGIN_LIBS)
	@test -n "$(plugindir)" || { echo "plugindir: nbdkit is not installed; install nbdkit or set plugindir=DIR" >&2; exit 2; }
	install -d $(DESTDIR)$(plugindir)
	for p in $(PLUGINS); do \
		install -m 644 $(B)/plugins/$$p.so $(DESTDIR)$(plugindir)/nbdkit-userblk-$$p-plugin.so; done
.PHONY: install-plugins

install-handlers: $(HANDLER_LIBS)
	@test -n "$(handlerdir)" || { echo "handlerdir: tcmu-runner is not installed; install tcmu-runner or set handlerdir=DIR" >&2; exit 2; }
	install -d $(DESTDIR)$(handlerdir)
	install -m 644 $(HANDLER_LIBS) $(DESTDIR)$(handlerdir)
.PHONY: install-handlers

# mount(8) finds it there as the type fuse.userblk-passthrough.
install-fuse-passthrough: $(FUSE)
	install -D -m 755 $(FUSE) $(DESTDIR)$(prefix)/bin/userblk-passthrough
.PHONY: install-fuse-passthrough

install-fuse-nullfs: $(NULLFS)
	install -D -m 755 $(NULLFS) $(DESTDIR)$(prefix)/bin/userblk-nullfs
.PHONY: install-fuse-nullfs

install-fuse-disk: $(FUSE_DISK)
	install -D -m 755 $(FUSE_DISK) $(DESTDIR)$(prefix)/bin/userblk-fuse-disk
.PHONY: install-fuse-disk

install-flow: $(FLOW)
	install -D -m 755 $(FLOW) $(DESTDIR)$(prefix)/bin/userblk-flow
.PHONY: install-flow

install-openloop: $(OPENLOOP)
	install -D -m 755 $(OPENLOOP) $(DESTDIR)$(prefix)/bin/userblk-openloop
.PHONY: install-openloop

UBLK_UNIT := userblk-ublk@.service

install-ublk: $(UBLK)
	install -D -m 755 $(UBLK) $(DESTDIR)$(prefix)/sbin/userblk-ublk
	install -d $(DESTDIR)$(unitdir)
	sed 's,@sbindir@,$(prefix)/sbin,' ublk/$(UBLK_UNIT) >$(DESTDIR)$(unitdir)/$(UBLK_UNIT)
.PHONY: install-ublk

install-buse: $(BUSE)
	install -D -m 755 $(BUSE) $(DESTDIR)$(prefix)/sbin/userblk-buse
.PHONY: install-buse

install-s3-tool: $(S3_TOOL)
	install -D -m 755 $(S3_TOOL) $(DESTDIR)$(prefix)/bin/userblk-s3
.PHONY: install-s3-tool

# The command, its package and its data; lib/userblk is what the harness serves devices with.
completiondir = $(prefix)/share/bash-completion/completions
COMPLETED = userblk-buse userblk-flow userblk-fuse-disk userblk-nullfs userblk-openloop userblk-passthrough userblk-s3 userblk-ublk
PYTHON_DIR = $(prefix)/lib/python3/dist-packages/userblk

install-python:
	install -D -m 755 bin/userblk $(DESTDIR)$(prefix)/bin/userblk
	install -d $(DESTDIR)$(completiondir)
	$(PYTHON) bin/userblk completion bash > $(DESTDIR)$(completiondir)/userblk
	for p in $(COMPLETED); do install -m 644 packaging/completion/userblk-programs $(DESTDIR)$(completiondir)/$$p; done
	install -D -m 644 -t $(DESTDIR)$(PYTHON_DIR) python/userblk/*.py
	install -D -m 644 -t $(DESTDIR)$(PYTHON_DIR)/analysis analysis/*.py
	install -D -m 644 -t $(DESTDIR)$(PYTHON_DIR)/analysis/templates analysis/templates/*
	for d in $$(cd harness && find . -name '*.py' -printf '%h\n' | sort -u); do \
		install -D -m 644 -t $(DESTDIR)$(PYTHON_DIR)/harness/$$d harness/$$d/*.py; done
	for f in $$(find configs -type f); do install -D -m 644 $$f $(DESTDIR)$(prefix)/share/userblk/$$f; done
	install -d $(foreach d,plugins tcmu-handlers flow openloop fuse-passthrough fuse-nullfs fuse-disk ublk buse,$(DESTDIR)$(prefix)/lib/userblk/$d)
	ln -sfn $(prefix)/bin/userblk-flow $(DESTDIR)$(prefix)/lib/userblk/flow/userblk-flow
	ln -sfn $(prefix)/bin/userblk-openloop $(DESTDIR)$(prefix)/lib/userblk/openloop/userblk-openloop
	ln -sfn $(prefix)/bin/userblk-passthrough $(DESTDIR)$(prefix)/lib/userblk/fuse-passthrough/userblk-passthrough
	ln -sfn $(prefix)/bin/userblk-nullfs $(DESTDIR)$(prefix)/lib/userblk/fuse-nullfs/userblk-nullfs
	ln -sfn $(prefix)/bin/userblk-fuse-disk $(DESTDIR)$(prefix)/lib/userblk/fuse-disk/userblk-fuse-disk
	ln -sfn $(prefix)/sbin/userblk-ublk $(DESTDIR)$(prefix)/lib/userblk/ublk/userblk-ublk
	ln -sfn $(prefix)/sbin/userblk-buse $(DESTDIR)$(prefix)/lib/userblk/buse/userblk-buse
	for p in $(PLUGINS); do ln -sfn $(plugindir)/nbdkit-userblk-$$p-plugin.so \
		$(DESTDIR)$(prefix)/lib/userblk/plugins/$$p.so; done
	for h in $(HANDLERS); do ln -sfn $(handlerdir)/handler_userblk_$$h.so \
		$(DESTDIR)$(prefix)/lib/userblk/tcmu-handlers/handler_userblk_$$h.so; done
.PHONY: install-python

install-man:
	for m in $(MAN_PAGES); do \
		install -D -m 644 $$m $(DESTDIR)$(mandir)/man$${m##*.}/$${m##*/}; done
.PHONY: install-man

uninstall: ## remove what install put there
	rm -f $(INSTALLED) $(addprefix $(DESTDIR)$(completiondir)/,userblk $(COMPLETED)) $(addprefix $(DESTDIR)$(prefix)/bin/,userblk userblk-passthrough userblk-fuse-disk userblk-flow userblk-openloop userblk-s3) \
		$(addprefix $(DESTDIR)$(prefix)/sbin/,userblk-ublk userblk-buse) $(DESTDIR)$(unitdir)/$(UBLK_UNIT)
	rm -rf $(DESTDIR)$(PYTHON_DIR) $(DESTDIR)$(prefix)/share/userblk $(DESTDIR)$(prefix)/lib/userblk
.PHONY: uninstall

# ---- unit tests (C) ---------------------------------------------------------

# tests/unit/test_*.c are programs, run under ASan and UBSan; those named
# test_*_threads also under TSan. A test that needs more than backends/ sets
# UNIT_OBJS_NAME or UNIT_LDFLAGS_NAME.
UNIT_TESTS := $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_*.c))
ifeq ($(wildcard /usr/bin/tcmu-runner)$(CI),)
UNIT_TESTS := $(filter-out test_tcmu,$(UNIT_TESTS))
$(if $(filter run-unit,$(MAKECMDGOALS)),$(info SKIPPED test_tcmu: tcmu-runner is not installed; run: apt-get install tcmu-runner))
endif
UNIT_THREAD_TESTS := $(filter %_threads,$(UNIT_TESTS))
SANITIZE_THREAD := -O1 -g -fsanitize=thread -fno-omit-frame-pointer

UNIT_PROGRAMS := $(UNIT_TESTS:%=$(B)/tests/unit/%)

# The adapter for tcmu-runner with its real headers and its library.
# The disks of the lab are a header and the C library's logarithm.
UNIT_LDFLAGS_test_lab_ssd := -lm

UNIT_OBJS_test_tcmu = $(TCMU_ADAPTER_OBJS)
UNIT_LDFLAGS_test_tcmu := -l:libtcmu.so.2
$(B)/tests/unit/test_tcmu.o: CPPFLAGS_tests = $(CPPFLAGS_tcmu-handlers)
$(B)/tests/unit/test_tcmu.o: $(TCMU_STAMP)

# userblk-ublk's tests link all of it but main().
$(foreach t,$(filter test_ublk%,$(UNIT_TESTS)),\
	$(eval UNIT_OBJS_$t = $$(filter-out %/main.o,$$(UBLK_OBJS)) $$(S3_OBJS))$(eval UNIT_LDFLAGS_$t = -luring $$(S3_LIBS)))
# In place of the kernel's driver.
UNIT_LDFLAGS_test_ublk_control += -Wl,--wrap=io_uring_submit
$(foreach t,$(filter test_buse%,$(UNIT_TESTS)),$(eval UNIT_OBJS_$t = $$(B)/buse/serve.o))

# What the fault tests answer in the kernel's place (names as with 64-bit offsets).
wrap = $(patsubst %,-Wl$(comma)--wrap=%,$1)
comma := ,
UNIT_LDFLAGS_test_passthrough_faults := $(call wrap,pread64 preadv64 pwrite64 pwritev64 \
	pwritev64v2 fdatasync fallocate64 passthrough_queue_limit)

# Those of what it stores and of its map need the pure parts, and samples of what is stored.
S3_PURE_OBJS := $(patsubst %.c,$(B)/%.o,$(S3_FORMAT) $(S3_MAP))
define s3_pure_unit
UNIT_OBJS_$1 = $$(S3_PURE_OBJS) $$(B)/tests/unit/s3_samples.o
UNIT_LDFLAGS_$1 := $$(S3_LIBS)
endef
$(foreach t,$(filter test_s3_format% test_s3_map% test_s3_slab%,$(UNIT_TESTS)),$(eval $(call s3_pure_unit,$t)))

# Nor do those of its cache.
define s3_cache_unit
UNIT_OBJS_$1 = $$(patsubst %,$$(B)/backends/s3/%.o,base/bytes base/localfile state/cache state/cachefile state/readahead)
UNIT_LDFLAGS_$1 = $$(S3_LIBS)
endef
$(foreach t,$(filter test_s3_cache% test_s3_readahead%,$(UNIT_TESTS)),$(eval $(call s3_cache_unit,$t)))

# The S3 client's tests need no other part of the device.
define s3_client_unit
UNIT_OBJS_$1 = $$(S3_CLIENT_OBJS)
UNIT_LDFLAGS_$1 = $$(S3_LIBS)
endef
$(foreach t,$(filter test_s3_client% test_s3_store%,$(UNIT_TESTS)),$(eval $(call s3_client_unit,$t)))

# Those of whole devices over a store in their own process need everything but the client.
define s3_fake_unit
UNIT_OBJS_$1 = $$(filter-out $$(S3_STORE_OBJS),$$(S3_OBJS)) $$(B)/tests/unit/s3_fake_store.o
UNIT_LDFLAGS_$1 := $$(S3_LIBS)
endef
$(foreach t,$(filter test_s3_direct% test_s3_volume% test_s3_writeback%,$(UNIT_TESTS)),$(eval $(call s3_fake_unit,$t)))
# Whose disk fails when the test says so.
UNIT_LDFLAGS_test_s3_writeback += $(call wrap,fdatasync)
# Whose map has no memory when the test says so.
UNIT_LDFLAGS_test_s3_volume_writes += $(call wrap,s3_slab_take)

S3_COMPACTION_BENCH := $(B)/tests/bench/s3_compaction_bench
$(S3_COMPACTION_BENCH): %: %.o $(B)/tests/unit/support.o $(B)/tests/unit/s3_fake_store.o $(filter-out $(S3_STORE_OBJS),$(S3_OBJS)) \
		$(BACKEND_OBJS)
	$(COMPILE) $^ -o $@ $(S3_LIBS) $(LDFLAGS) -lcmocka
bench-s3-compaction: $(S3_COMPACTION_BENCH) ## measure compaction over a store of 20 ms
	$(S3_COMPACTION_BENCH)
.PHONY: bench-s3-compaction

# ---- the S3 device's simulation ---------------------------------------------------

# The whole engine but its client, on a simulated machine.
S3_SIMULATION := $(B)/tests/simulation/s3_simulation
S3_SIMULATION_OBJS := $(patsubst %.c,$(B)/%.o,$(wildcard tests/simulation/*.c))
S3_SIMULATION_CALLS := $(addprefix pthread_,mutex_init mutex_destroy mutex_lock mutex_trylock mutex_unlock \
	cond_init cond_destroy cond_wait cond_timedwait cond_signal cond_broadcast create join sigmask) \
	sem_init sem_destroy sem_post sem_wait sched_yield sysconf clock_gettime time nanosleep usleep \
	getrandom RAND_bytes open64 stat64 fstat64 fstatvfs64 flock read pread64 pwrite64 preadv64 pwritev64 \
	ftruncate64 fallocate64 fdatasync unlink close \
	$(if $(findstring -fsanitize,$(OPT)),,malloc calloc aligned_alloc realloc free malloc_usable_size mmap64 munmap madvise)
$(S3_SIMULATION_OBJS): CFLAGS_ALL += $(shell pkg-config --cflags $(S3_PACKAGES))
$(S3_SIMULATION): $(S3_SIMULATION_OBJS) $(filter-out $(S3_STORE_OBJS),$(S3_OBJS)) $(BACKEND_OBJS)
	@mkdir -p $(@D)
	$(COMPILE) $^ -o $@ $(call wrap,$(S3_SIMULATION_CALLS)) $(LDFLAGS) $(S3_LIBS)

# Built in a place of its own, with the frames of its stacks. TARGET= another, for another tree or OPT.
SIMULATION_TARGET ?= sim
SIMULATION_OPT ?= -O2 -g -fno-omit-frame-pointer
SIMULATE = $(MAKE) --no-print-directory TARGET=$(SIMULATION_TARGET) OPT="$(SIMULATION_OPT)" s3-simulation && \
	build/$(SIMULATION_TARGET)/tests/simulation/s3_simulation

s3-simulation: $(S3_SIMULATION)
.PHONY: s3-simulation

# The day's seeds, unless SEED= says which: a failure is shrunk, and the command that replays it printed.
simulate-s3: ## the S3 device on a simulated machine: SEED=, SEEDS=, SECONDS= (60)
	@$(SIMULATE) $(if $(SEED),--seed $(SEED) $(if $(SEEDS)$(SECONDS),,--seeds 1),--seed $$(date +%Y%m%d)000000) \
		$(if $(SEEDS),--seeds $(SEEDS)) $(if $(SECONDS),--seconds $(SECONDS),$(if $(SEED)$(SEEDS),,--seconds 60)) $(SIMULATION_OPTIONS)
.PHONY: simulate-s3

simulate-s3-long: ## the same for an hour
	$(MAKE) --no-print-directory SECONDS=3600 simulate-s3
.PHONY: simulate-s3-long

# Under the sanitizers, where schedules take longer; and the same schedules twice.
simulate-s3-asan: ## the same under ASan and UBSan
	$(MAKE) --no-print-directory SIMULATION_TARGET=sim-asan SIMULATION_OPT="$(SANITIZE)" SECONDS=$(or $(SECONDS),60) simulate-s3
simulate-s3-twice: ## are schedules the same each time
	$(MAKE) --no-print-directory SEEDS=$(or $(SEEDS),20) SIMULATION_OPTIONS=--twice simulate-s3
.PHONY: simulate-s3-asan simulate-s3-twice

# Each for SECONDS= (600) at most; all of them unless MUTANTS= names some.
simulate-s3-mutants: ## does the simulation find the defects of tests/s3/mutants: MUTANTS=, SECONDS=
	@$(PYTHON) tests/s3/mutants/run.py $(if $(SECONDS),--seconds $(SECONDS)) $(MUTANTS)
.PHONY: simulate-s3-mutants

# userblk-flow's tests link all of it but main().
define flow_unit
UNIT_OBJS_$1 = $$(filter-out %/main.o,$$(FLOW_OBJS))
UNIT_LDFLAGS_$1 := -lm
endef
$(foreach t,$(filter test_flow_%,$(UNIT_TESTS)),$(eval $(call flow_unit,$t)))

.SECONDEXPANSION:
$(UNIT_PROGRAMS): $(B)/tests/unit/%: $(B)/tests/unit/%.o $(B)/tests/unit/support.o \
		$(BACKEND_OBJS) $$(UNIT_OBJS_$$*)
	$(COMPILE) $^ -o $@ $(UNIT_LDFLAGS_$*) $(LDFLAGS) -lcmocka

# Runs UNIT_TESTS of this TARGET; all of them, then fails if one did.
run-unit: $(UNIT_PROGRAMS)
	@failed=; for t in $^; do echo "== $$t"; timeout 900 $$t || failed+=" $$t"; done; \
	test -z "$$failed" || { echo "FAILED:$$failed" >&2; exit 1; }
.PHONY: run-unit

# These look at the heap, which a sanitizer has an allocator of its own for.
UNIT_HEAP_TESTS := test_s3_volume_faults
test-unit: ## C unit tests, under the sanitizers
	$(MAKE) --no-print-directory TARGET=asan OPT="$(SANITIZE)" run-unit
	$(MAKE) --no-print-directory TARGET=tsan OPT="$(SANITIZE_THREAD)" \
		UNIT_TESTS="$(UNIT_THREAD_TESTS)" run-unit
	$(MAKE) --no-print-directory TARGET=host UNIT_TESTS="$(UNIT_HEAP_TESTS)" run-unit
.PHONY: test-unit

# In the program alone: what runs as another process (FUSE, nbdkit, the CLI of most tests) is not counted.
coverage: flow $(FUSE_HERE) ## how much of the C code unit tests run, and how much of the Python code pytest
	find build/coverage -name '*.gcda' -delete 2>/dev/null || true
	$(MAKE) --no-print-directory TARGET=coverage OPT="-O1 -g --coverage -fprofile-update=atomic" run-unit
	gcovr --root . --object-directory build/coverage --filter '(backends|harness/flow|tcmu-handlers|ublk|lab/ssd)/' \
		--exclude-unreachable-branches --print-summary --output build/coverage/c.txt
	$(PYTHON) -m coverage run --data-file build/coverage/python --source harness,analysis,lab -m pytest -q -p no:cacheprovider tests/python
	$(PYTHON) -m coverage report --data-file build/coverage/python --skip-covered --sort cover
.PHONY: coverage

# libFuzzer on the decoders of what the S3 device stores. What it has learnt stays in build/fuzz.
FUZZ_S3 := build/fuzz/s3
FUZZ_S3_SOURCES := $(filter-out %/transform.c,$(S3_FORMAT)) $(S3_MAP) \
	tests/unit/s3_samples.c tests/fuzz/fuzz_s3.c

$(FUZZ_S3): $(FUZZ_S3_SOURCES) $(wildcard backends/s3/*/*.h)
	@mkdir -p $(@D)/corpus
	clang -std=c17 -D_GNU_SOURCE $(WARNINGS) -O1 -g -fsanitize=fuzzer,address,undefined \
		-fno-sanitize-recover=all -I. $(FUZZ_S3_SOURCES) -o $@ -lzstd -lisal
	$@ --seeds $(@D)/corpus

# The same on the parsers of what a store answers.
FUZZ_S3_REPLIES := build/fuzz/s3-replies
FUZZ_S3_REPLIES_SOURCES := $(patsubst %,backends/s3/client/%.c,json names reply) tests/fuzz/fuzz_s3_replies.c

$(FUZZ_S3_REPLIES): $(FUZZ_S3_REPLIES_SOURCES) $(wildcard backends/s3/*/*.h tests/fuzz/*.dict)
	@mkdir -p $(@D)/corpus-replies
	clang -std=c17 -D_GNU_SOURCE $(WARNINGS) -O1 -g -fsanitize=fuzzer,address,undefined \
		-fno-sanitize-recover=all -I. $(FUZZ_S3_REPLIES_SOURCES) -o $@ -lexpat

fuzz-s3-replies: $(FUZZ_S3_REPLIES) ## fuzz the parsers of what a store answers (needs clang)
	$< -max_total_time=$(FUZZ_SECONDS) -max_len=16384 -rss_limit_mb=4096 -verbosity=0 -print_final_stats=1 \
		-dict=tests/fuzz/s3_replies.dict -artifact_prefix=build/fuzz/ build/fuzz/corpus-replies
.PHONY: fuzz-s3-replies

FUZZ_SECONDS ?= 60
fuzz-s3: $(FUZZ_S3) ## fuzz the decoders of the S3 device for FUZZ_SECONDS=60 (needs clang)
	$< -max_total_time=$(FUZZ_SECONDS) -max_len=16384 -rss_limit_mb=4096 -verbosity=0 -print_final_stats=1 \
		-artifact_prefix=build/fuzz/ build/fuzz/corpus
.PHONY: fuzz-s3

fuzz-s3-long: ## the same for half an hour
	$(MAKE) --no-print-directory FUZZ_SECONDS=1800 fuzz-s3 fuzz-s3-replies
.PHONY: fuzz-s3-long

format-check: ## are all C files formatted
	git ls-files -z '*.c' '*.h' | xargs -0 $(VENV)/bin/clang-format --dry-run -Werror
.PHONY: format-check

# ---- checkers and Python tests ------------------------------------------------

VENV := build/venv
export PYTHONPATH := $(CURDIR)/python:$(CURDIR)/tests/support

SPDX_EXEMPT := ':!docs/data/*' ':!packaging/debian/copyright' ':!packaging/debian/source/format' ':!*.csv' ':!*.tar.xz' ':!LICENSE' ':!.gitignore'

# All checkers, then fails if one did.
LINTERS := spdx-check format-check mypy-check ruff-check man-check rooms-check

lint: ## all checkers of style and types
	@failed=; for l in $(LINTERS); do echo "== $$l"; \
		$(MAKE) --no-print-directory $$l || failed+=" $$l"; done; \
	test -z "$$failed" || { echo "FAILED:$$failed" >&2; exit 1; }
.PHONY: lint

spdx-check: ## does every file name its licence
	@missing=$$(git ls-files -z -- $(SPDX_EXEMPT) | \
		xargs -0 grep -Ls -d skip 'SPDX-License-Identifier: BSD-3-Clause' || true); \
	test -z "$$missing" || { echo "no SPDX-License-Identifier in:" $$missing >&2; exit 1; }
.PHONY: spdx-check

rooms-check: ## do folders of the C code include those below them only
	$(PYTHON) tests/rooms.py
.PHONY: rooms-check

mypy-check: ## are the types right
	mypy --cache-dir build/mypy
	mypy --cache-dir build/mypy-tests --config-file tests/mypy.ini
.PHONY: mypy-check

ruff-check: ## is the Python code clean
	$(VENV)/bin/ruff check --cache-dir build/ruff .
.PHONY: ruff-check

man-check: ## are the manual pages well formed
	mandoc -T lint -W warning $(MAN_PAGES)
.PHONY: man-check

test-python: flow $(FUSE_HERE) ## pytest: harness, analysis, lab, on loop devices
	$(PYTHON) -m pytest -q -p no:cacheprovider tests/python
.PHONY: test-python

# ---- the S3 device's tests ------------------------------------------------------

# With real S3 servers, of pinned versions, from their registries.
s3-server:
	harness/get-s3-server versitygw
.PHONY: s3-server

test-s3: plugins s3-tool s3-server s3-client-driver s3-volume-driver ## test the S3 device: data, faults, two writers, 200 crashes
	$(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/s3
.PHONY: test-s3

# What was done is kept in build/crash: an interrupted run, or one that ended after CRASH_SECONDS, goes on.
CRASH_POINTS ?= 10000

test-crash: plugins s3-server s3-volume-driver ## crash the S3 device CRASH_POINTS times (10000), and judge what is left
	@mkdir -p build/crash
	$(PYTHON) tests/s3/crash.py --points $(CRASH_POINTS) --results build/crash/results --keep build/crash \
		$(if $(CRASH_SECONDS),--time $(CRASH_SECONDS))
.PHONY: test-crash

test-s3-outage: plugins s3-server ## the S3 device through outages of 5 minutes
	USERBLK_S3_OUTAGE=300 $(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/s3/test_device_faults.py -k test_outage
.PHONY: test-s3-outage

test-s3-distributed: test-s3-minio test-s3-garage ## the S3 device over four nodes of MinIO and three of Garage (cargo), which die
.PHONY: test-s3-distributed

# What does not look at a store from behind. Garage keeps no second writer out.
DISTRIBUTED_TESTS := $(patsubst %,tests/s3/%.py,distributed test_device_data test_device_writers test_snapshots test_s3_engine_maintenance)
DISTRIBUTED_CRASH_POINTS ?= 100
test-s3-minio test-s3-garage: test-s3-%: plugins s3-tool s3-volume-driver
	harness/get-s3-server $*
	USERBLK_S3_STORE=$* tests/s3/own-network $(PYTHON) -m pytest -q -rs -p no:cacheprovider \
		$(if $(filter garage,$*),-m "not fencing") $(DISTRIBUTED_TESTS)
	tests/s3/own-network $(PYTHON) tests/s3/crash.py --store $* --points $(DISTRIBUTED_CRASH_POINTS)
.PHONY: test-s3-minio test-s3-garage

# The client's tests with a sanitizer in it.
test-s3-client-asan test-s3-client-tsan: test-s3-client-%: s3-server
	$(MAKE) --no-print-directory TARGET=$* OPT="$(if $(filter asan,$*),$(SANITIZE),$(SANITIZE_THREAD))" s3-client-driver
	USERBLK_S3_DRIVER=build/$*/tests/s3/client_driver \
	$(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/s3/test_client.py
.PHONY: test-s3-client-asan test-s3-client-tsan

# The engine with all its threads over a real store, for LOAD_SECONDS in each of four volumes.
LOAD_SECONDS ?= 3
test-s3-load-asan test-s3-load-tsan: test-s3-load-%: s3-server
	$(MAKE) --no-print-directory TARGET=$* OPT="$(call sanitize,$*)" s3-volume-driver
	USERBLK_S3_VOLUME_DRIVER=build/$*/tests/s3/volume_driver USERBLK_S3_LOAD=$(LOAD_SECONDS) \
	$(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/s3/test_mixed_load.py
.PHONY: test-s3-load-asan test-s3-load-tsan

test-s3-load-long: ## the S3 device under a mixed load and the sanitizers, for longer
	$(MAKE) --no-print-directory LOAD_SECONDS=120 test-s3-load-asan test-s3-load-tsan
.PHONY: test-s3-load-long

# Snapshots, clones, garbage collection, the control socket and I/O at once with a sanitizer in the device.
test-s3-snapshots-asan test-s3-snapshots-tsan: test-s3-snapshots-%: plugins s3-server s3-tool
	$(MAKE) --no-print-directory TARGET=$* OPT="$(if $(filter asan,$*),$(SANITIZE),$(SANITIZE_THREAD))" s3-volume-driver
	USERBLK_S3_VOLUME_DRIVER=build/$*/tests/s3/volume_driver \
	$(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/s3/test_snapshots.py tests/s3/test_control_threads.py
.PHONY: test-s3-snapshots-asan test-s3-snapshots-tsan

# ---- the benchmark and all tests ------------------------------------------------

# make bench SATA=/dev/sdb NVME=/dev/nvme0n1p3 CONFIRM="serial serial" PROFILE=paper ...
BENCH_OPTIONS = $(if $(SATA),--sata $(SATA)) $(if $(NVME),--nvme $(NVME)) $(if $(CONFIRM),--confirm '$(CONFIRM)') \
	$(if $(PROFILE),--profile $(PROFILE)) $(if $(REPS),--reps $(REPS)) $(if $(MAX_REPS),--max-reps $(MAX_REPS)) \
	$(if $(WARM_UP),--warm-up $(WARM_UP)) $(if $(CONTROL),--control) $(if $(COSTS),--costs) $(if $(INSTRUCTIONS),--instructions) $(if $(SUITE),--suite $(SUITE)) \
	$(if $(SYSTEMS),--systems '$(SYSTEMS)') $(if $(WORKLOADS),--workloads '$(WORKLOADS)') \
	$(if $(WHERE),--where $(WHERE)) $(if $(SEED),--seed $(SEED)) $(if $(RESULTS),--results '$(RESULTS)') \
	$(if $(STORE),--store '$(STORE)') $(if $(DRY_RUN),--dry-run)

GUEST_TESTS = env PYTHONPATH=/userblk/python:/userblk/tests/support CI=$(CI) python3 -m pytest -q -rs -p no:cacheprovider
LAB_WITH_STORE = $(PYTHON) tests/lab/with_store.py

test-lab: s3-server ## the lab itself, then our disks and file systems on its real kernel, in one boot
	lab/make-in-root all
	$(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/lab/test_lab.py tests/lab/test_virtual_time.py
	$(LAB_WITH_STORE) --timeout 2400 -- $(GUEST_TESTS) -m "not long" tests/lab/guest \
		tests/python/test_harness_safety.py # once more where there are dm and a root on a disk
.PHONY: test-lab

test-lab-instructions: ## counts of instructions, which repeat beside other load
	$(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/lab/test_instructions.py
.PHONY: test-lab-instructions

test-lab-long: s3-server fs-suites ## what test-lab leaves out: every combination, many cycles (needs cargo 1.85)
	lab/make-in-root all
	$(LAB_WITH_STORE) --timeout 5400 -- $(GUEST_TESTS) -m long tests/lab/guest
	$(LAB_WITH_STORE) --timeout 5400 -- env DIFFERENTIAL_SECONDS=120 $(GUEST_TESTS) tests/lab/guest/test_differential.py
.PHONY: test-lab-long

test-lab-s3: s3-server fs-suites ## of both what is about the S3 device: mkfs to fsck, fio verify, fsx, a store that goes away
	lab/make-in-root plugins handlers
	$(LAB_WITH_STORE) --timeout 3600 -- $(GUEST_TESTS) tests/lab/guest/test_s3_paths.py tests/lab/guest/test_tcmu_s3.py
.PHONY: test-lab-s3

bench: deps-build deps-bench deps-report $(if $(SATA)$(NVME),,deps-lab) $(if $(filter s3%,$(SUITE)),deps-s3) ## the paper's Table 1 (SUITE=bdus: and 2), on named devices or in the lab (see userblk run --help)
	@$(MAKE) --no-print-directory all
	bin/userblk run $(BENCH_OPTIONS)
.PHONY: bench

bench-gate: ## is this checkout slower than BASE=REVISION? a few cells of both in virtual time (GATE: options of tests/bench/bench_gate.py)
	@test -n "$(BASE)" || { echo "BASE= is missing: name a revision, as in make bench-gate BASE=origin/main" >&2; exit 2; }
	$(PYTHON) tests/bench/bench_gate.py --base '$(BASE)' $(GATE)
.PHONY: bench-gate

TESTS := lint test-unit fuzz-s3 fuzz-s3-replies test-python test-component test-component-asan test-s3 test-s3-load-asan test-s3-load-tsan simulate-s3 simulate-s3-twice test-fuse test-fuse-3.18 test-differential test-lab
# What takes longer, or more than Debian 12 has.
LONG_TESTS := test-packages coverage fuzz-s3-long simulate-s3-long simulate-s3-asan simulate-s3-mutants test-s3-client-asan test-s3-client-tsan test-s3-snapshots-asan test-s3-snapshots-tsan test-s3-load-long test-crash test-s3-outage test-s3-distributed test-fuse-suites test-differential-long test-fuse-asan test-fuse-tsan test-fuse-3.17 \
	test-fuse-3.18-suites test-fuse-3.18-asan test-fuse-3.18-tsan test-lab-instructions test-lab-long test-lab-backports test-lab-long-backports test-lab-bullseye

test-lab-backports: ## test-lab on the newer kernel
	LAB_KERNEL=backports $(MAKE) --no-print-directory test-lab
test-lab-long-backports: ## test-lab-long on it
	LAB_KERNEL=backports $(MAKE) --no-print-directory test-lab-long
.PHONY: test-lab-backports test-lab-long-backports

# What the release is too old for is skipped.
test-lab-bullseye: export LAB_RELEASE := bullseye
test-lab-bullseye: s3-server ## the guest's part of test-lab on Debian 11: nbdkit and tcmu-runner of the paper's time
	lab/make-in-root all
	$(LAB_WITH_STORE) --timeout 2400 -- $(GUEST_TESTS) -m "not long" tests/lab/guest
.PHONY: test-lab-bullseye

# Skips are listed; with CI=true tests/conftest.py makes failures of those that an installation would have mended.
# Those of BESIDE have a guest or servers of their own, and run beside the others. RESUME=1: without what has passed
# at this commit.
BESIDE := test-lab test-s3
test: deps ## all tests but the long ones
	@$(MAKE) --no-print-directory run-tests RUN="$(filter-out $(BESIDE),$(TESTS))" RUN_BESIDE="$(BESIDE)"
test-long: deps ## the longer tests; RESUME=1 goes on after an interruption
	@$(MAKE) --no-print-directory run-tests RUN="$(LONG_TESTS)"
.PHONY: test test-long

run-tests: all s3-server
	@$(PYTHON) tests/run.py $(if $(RESUME),--resume) $(RUN_BESIDE:%=--beside %) $(RUN)
.PHONY: run-tests

SITE := build/site-venv/bin/mkdocs
$(SITE): docs/requirements.txt
	$(PYTHON) -m venv $(@D)/..
	$(@D)/pip install -q --disable-pip-version-check -r $<
	@touch $@
docs: $(SITE) ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(SITE) build -q --strict
docs-tables: ## the tables and figures in docs anew, from the campaigns in docs/data
	docs/make-tables
.PHONY: docs-tables
docs-serve: $(SITE) ## show the documentation on http://127.0.0.1:8000
	NO_MKDOCS_2_WARNING=1 $(SITE) serve
.PHONY: docs docs-serve

deb: deps ## Debian packages of the committed tree, into build/deb (needs debhelper and dh-python)
	packaging/make-deb
test-packages: deps ## Debian packages and pip: build them, install them elsewhere, use them, remove them
	$(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/packages
.PHONY: deb test-packages

clean: ## remove what was built, but not the lab's root file system nor results
	rm -rf $(filter-out build/lab build/deps build/s3-servers build/venv,$(wildcard build/*)) $(PLUGIN_LINKS) $(HANDLER_LINKS)
.PHONY: clean

-include $(shell find $(B) -name '*.d' 2>/dev/null)
