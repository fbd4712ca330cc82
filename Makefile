# SPDX-License-Identifier: BSD-3-Clause
# The face of the project: `make help` lists the targets. meson.build builds the programs.

.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules --no-print-directory
SHELL := /bin/bash
.SHELLFLAGS := -e -o pipefail -c
PYTHON ?= /usr/bin/python3
ifeq ($(origin CC),default)
CC := gcc
endif
export CC

all: ## build everything for this machine
help: ## list the targets
	@sed -n 's/^\([a-z0-9.-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26
.PHONY: all help

# ---- programs -------------------------------------------------------------------

# Each TARGET has a directory of its own: host, a lab release (trixie), for which make runs inside that root file system,
# or one with other flags. KIND: whose flags; that of the name, unless it is set.
TARGET ?= host
KIND ?= $(TARGET)
FLAGS_asan := -Doptimization=1 -Dhardening=false -Db_sanitize=address,undefined \
	'-Dc_args=-fno-sanitize-recover=all -fno-omit-frame-pointer'
FLAGS_tsan := -Doptimization=1 -Dhardening=false -Db_sanitize=thread -Dc_args=-fno-omit-frame-pointer
FLAGS_sim := -Dhardening=false -Dc_args=-fno-omit-frame-pointer
FLAGS_coverage := -Doptimization=1 -Dhardening=false -Db_coverage=true -Dc_args=-fprofile-update=atomic
FLAGS_fuzz := -Doptimization=1 -Dhardening=false -Db_sanitize=address,undefined -Db_lundef=false -Dfuzzers=true \
	'-Dc_args=-fno-sanitize-recover=all -fsanitize=fuzzer-no-link'

# Where make install puts them; OPTIONS: other options of meson.
prefix ?= /usr/local
FLAGS_host = -Dprefix=$(prefix) $(foreach d,mandir plugindir handlerdir unitdir,$(if $($d),-D$d=$($d)))
OPTIONS ?=
# With CI=true nothing is left out.
BUILD = @packaging/build build/$(TARGET) $(FLAGS_$(lastword $(subst -, ,$(KIND)))) \
	$(if $(CI),$(if $(filter host asan tsan,$(TARGET)),-Dauto_features=enabled)) $(OPTIONS) --
# Where `nbdkit ./plugins/NAME.so` and `tcmu-runner --handler-path tcmu-handlers` look in a checkout.
LINK = $(if $(filter host,$(TARGET)),@shopt -s nullglob; cd build/host; for f in plugins/*.so tcmu-handlers/*.so; do \
	[[ $$f = */nbdkit-* ]] || ln -sfn ../build/host/$$f ../../$$f; done)

all:
	$(BUILD) programs
	@cat build/$(TARGET)/left-out >&2
	$(LINK)
plugins: ## build the nbdkit plugins
handlers: ## build the tcmu-runner handlers
flow: ## build the engine for file-system workloads
openloop: ## build the engine of open loops (needs liburing-dev)
ops: ## build the engine for single operations on files
kv: ## build the engine for libraries of keys and values (needs librocksdb-dev, libleveldb-dev or libsqlite3-dev)
fuse-passthrough: ## build the FUSE passthrough file system (needs libfuse3-dev)
fuse-nullfs: ## build the FUSE file system that holds no data (needs libfuse3-dev)
fuse-disk: ## build the server of devices as files through FUSE (needs libfuse3-dev)
ublk: ## build the server for Linux's ublk driver (needs liburing-dev)
buse: ## build the sequential server on Linux's nbd driver (needs libnl-genl-3-dev)
s3-tool: ## build the tool for volumes of the S3 device
s3-client-bench: ## build the benchmark of the S3 client alone
PARTS := plugins handlers flow openloop ops kv fuse-passthrough fuse-nullfs fuse-disk ublk buse s3-tool \
	s3-client-bench s3-client-driver s3-volume-driver s3-simulation
$(PARTS):
	$(BUILD) $@
	$(LINK)
.PHONY: $(PARTS)

# Meson would take a relative DESTDIR from its own directory on.
TO_DESTDIR = DESTDIR="$${DESTDIR:+$$(realpath -ms -- "$$DESTDIR")}"
install: all ## install everything (DESTDIR, prefix)
	@$(TO_DESTDIR) meson install -C build/$(TARGET) --no-rebuild --quiet
uninstall: ## remove the installed files
	$(BUILD) build.ninja
	@$(TO_DESTDIR) packaging/uninstall build/$(TARGET)
deb: deps ## build Debian packages of the committed tree, into build/deb (needs debhelper and dh-python)
	packaging/make-deb
clean: ## remove what was built, except the lab's root file system and results
	rm -rf $(filter-out build/lab build/deps build/s3-servers build/venv,$(wildcard build/*)) plugins/*.so tcmu-handlers/*.so
.PHONY: install uninstall deb clean

# ---- the benchmark and the lab --------------------------------------------------

# make bench SATA=/dev/sdb NVME=/dev/nvme0n1p3 CONFIRM="serial serial" PROFILE=paper ...: options of `userblk run` by
# their names in capitals; ARGS="..." has any others.
FLAGS_OF_RUN := CONTROL COSTS INSTRUCTIONS DRY_RUN
VALUES_OF_RUN := SATA NVME CONFIRM PROFILE REPS MAX_REPS WARM_UP SUITE SYSTEMS WORKLOADS DEVICES WHERE SEED RESULTS STORE
option = --$(shell tr A-Z_ a-z- <<<$1)
APPS := apps kv postgresql source-tree
STORES := s3 bs3-fs
BENCH_NEEDS = bench $(if $(DRY_RUN),,build report $(if $(SATA)$(NVME),,lab) $(if $(filter $(STORES),$(SUITE)),s3) \
	$(if $(filter $(APPS),$(SUITE)),apps))
bench: $(addprefix deps-,$(BENCH_NEEDS)) ## measure the paper's Table 1 (SUITE=bdus: and 2), on named devices or in the lab (see userblk run --help)
	$(if $(DRY_RUN),,@$(MAKE) all)
	bin/userblk run $(strip $(foreach o,$(VALUES_OF_RUN),$(if $($o),$(call option,$o) '$($o)')) \
		$(foreach o,$(FLAGS_OF_RUN),$(if $($o),$(call option,$o))) $(ARGS))
lab: ## build the lab (LAB_KERNEL=stable, backports or a directory, LAB_RELEASE=trixie or bullseye) and boot it once
	lab/run --verbose -- sh -c 'uname -sr; lsblk -d -o NAME,SIZE,ROTA,DISC-MAX,SERIAL "$$LAB_SATA" "$$LAB_NVME"'
lab-shell: ## open a shell in the lab's guest; all its changes are lost
	lab/run --verbose --tty --timeout 0 -- bash
lab-programs: ## build everything for the lab's guest, inside its root file system
	lab/make-in-root all
.PHONY: bench lab lab-shell lab-programs

include packaging/packages.mk docs/docs.mk fuse-passthrough/libfuse.mk tests/targets.mk
