# SPDX-License-Identifier: BSD-3-Clause
# The tests, by what they run: the Makefile includes this, tests/run.py runs what TESTS and LONG_TESTS name.

export PYTHONPATH := $(CURDIR)/python:$(CURDIR)/tests/support
VENV := build/venv
# What hangs fails, by its name, with the stacks of its threads; tests that may take longer say so: pytest.mark.timeout.
# What hangs in a library in C cannot be ended that way: a minute later its stack names it.
SLOWEST := --durations 15 --durations-min 3
PYTEST_OPTIONS := -q -rfEs -p no:cacheprovider $(SLOWEST) --timeout 900 -o faulthandler_timeout=960
PYTEST := $(PYTHON) -m pytest $(PYTEST_OPTIONS)

TESTS := lint test-unit fuzz-s3 fuzz-s3-replies test-python test-component test-component-asan test-s3 \
	test-s3-load-asan test-s3-load-tsan simulate-s3 simulate-s3-twice test-fuse test-fuse-3.18 \
	test-differential test-lab
# What takes longer, or more than Debian 12 has.
LONG_TESTS := analyze test-packages test-paper-profile coverage fuzz-s3-long simulate-s3-long simulate-s3-asan \
	simulate-s3-mutants test-s3-client-asan test-s3-client-tsan test-s3-snapshots-asan test-s3-snapshots-tsan \
	test-s3-load-long test-crash test-s3-outage test-s3-distributed test-fuse-suites test-differential-long \
	test-differential-mutants test-xfstests test-xfstests-lab test-fuse-asan test-fuse-tsan test-fuse-3.17 test-fuse-3.18-suites test-fuse-3.18-asan \
	test-fuse-3.18-tsan test-tutorial test-lab-instructions test-explain test-gate test-two-hosts test-attach \
	test-lab-long test-lab-backports test-lab-long-backports test-lab-bullseye

# Skips are listed; with CI=true tests/conftest.py makes failures of those that an installation would have prevented.
# Those of BESIDE have a guest or servers of their own, and run beside the others: the longest first, the next in the
# stream that is free. Those of ALONE have limits of CPU time. RESUME=1: without what has passed at this commit.
BESIDE := test-lab test-s3
LONG_BESIDE := test-lab-long test-lab-long-backports test-attach test-gate test-lab-backports test-lab-bullseye test-explain \
	test-tutorial test-lab-instructions test-two-hosts
ALONE := test-paper-profile
test: deps ## run all tests except the long ones
	@$(MAKE) run-tests RUN="$(filter-out $(BESIDE),$(TESTS))" RUN_BESIDE="$(BESIDE)"
test-long: deps ## run the longer tests; RESUME=1 continues after an interruption
	@$(MAKE) run-tests RUN="$(filter-out $(LONG_BESIDE) $(ALONE),$(LONG_TESTS))" RUN_BESIDE="$(LONG_BESIDE)" RUN_ALONE="$(ALONE)"
run-tests: all s3-server
	@$(PYTHON) tests/run.py $(if $(RESUME),--resume) $(RUN_ALONE:%=--alone %) $(RUN_BESIDE:%=--beside %) $(RUN)
.PHONY: test test-long run-tests

# ---- checkers -------------------------------------------------------------------

# All of them, then fails if one did.
LINTERS := spdx-check format-check mypy-check ruff-check shell-check man-check rooms-check
SPDX_EXEMPT := ':!docs/data/*' ':!packaging/debian/copyright' ':!packaging/debian/source/format' ':!*.csv' ':!*.tar.xz' ':!LICENSE' ':!.gitignore'

lint: ## run all checkers of style and types
	@failed=; for l in $(LINTERS); do echo "== $$l"; $(MAKE) $$l || failed+=" $$l"; done; \
	test -z "$$failed" || { echo "FAILED:$$failed" >&2; exit 1; }
spdx-check: ## check that every file names its licence
	@missing=$$(git ls-files -z -- $(SPDX_EXEMPT) | \
		xargs -0 grep -Ls -d skip 'SPDX-License-Identifier: BSD-3-Clause' || true); \
	test -z "$$missing" || { echo "no SPDX-License-Identifier in:" $$missing >&2; exit 1; }
format-check: ## check that all C files are formatted
	git ls-files -z '*.c' '*.h' | xargs -0 $(VENV)/bin/clang-format --dry-run -Werror
rooms-check: ## check that directories of the C code only include those below them
	$(PYTHON) tests/rooms.py
mypy-check: ## check the types of the Python code
	mypy --cache-dir build/mypy
	mypy --cache-dir build/mypy-tests --config-file tests/mypy.ini
ruff-check: ## check the style of the Python code
	$(VENV)/bin/ruff check --cache-dir build/ruff .
	$(VENV)/bin/ruff format --check --quiet --cache-dir build/ruff .
shell-check: ## check the shell scripts
	scripts=$$(git grep -lE '^#!.*\b(ba|da)?sh\b') && shellcheck packaging/completion/* $$scripts
man-check: ## check the form of the manual pages
	git ls-files -z '*.[18]' | xargs -0 mandoc -T lint -W warning
.PHONY: lint $(LINTERS)

analyze: all ## search the C programs for defects with clang-tidy
	$(PYTHON) tests/analyze.py
.PHONY: analyze

claims: all ## compare the numbers of README and docs with the kept data; measure a sample again, within 30 minutes
	$(PYTHON) tests/support/claims.py --measure
.PHONY: claims

# ---- C unit tests: tests/unit/meson.build ---------------------------------------

test-unit: ## run the C unit tests, under the sanitizers (UNIT_TESTS="test_null ...": these, under ASan and UBSan)
	@$(MAKE) TARGET=asan UNIT_SUITE=unit run-unit
ifndef UNIT_TESTS
	@$(MAKE) TARGET=tsan UNIT_SUITE=threads run-unit
	@$(MAKE) UNIT_SUITE=heap run-unit
endif
# Those of TARGET: UNIT_TESTS, or all of UNIT_SUITE. What was skipped is printed at the end, and what was not even built.
UNIT_SUITE ?= unit
run-unit:
	$(BUILD) $(or $(UNIT_TESTS:%=tests/unit/%),$(UNIT_SUITE)-tests)
	@status=0; meson test -C build/$(TARGET) --no-rebuild --print-errorlogs \
		$(or $(UNIT_TESTS),--suite $(UNIT_SUITE)) || status=$$?; \
	grep '^SKIPPED' build/$(TARGET)/meson-logs/testlog.txt || true; \
	sed 's/^/SKIPPED [1] /' build/$(TARGET)/left-out; exit $$status
.PHONY: test-unit run-unit

# C code in the unit tests alone, not in FUSE or nbdkit; Python code in all processes, those in guests left out. If a test
# fails, the figures are printed all the same.
coverage: all ## measure how much of the C code the unit tests run, and of the Python code pytest
	@status=0; for part in c python; do $(MAKE) coverage-$$part || status=$$?; done; exit $$status
coverage-c:
	find build/coverage -name '*.gcda' -delete 2>/dev/null || true
	@status=0; $(MAKE) TARGET=coverage run-unit || status=$$?; \
	gcovr --root . --object-directory build/coverage --filter '(backends|harness/flow|tcmu-handlers|ublk|lab/ssd)/' \
		--exclude-unreachable-branches --print-summary --output build/coverage/c.txt || status=$$?; exit $$status
coverage-python: export COVERAGE_PROCESS_START := $(CURDIR)/tests/coverage/coverage.ini
coverage-python: export COVERAGE_SOURCES := $(CURDIR)
coverage-python: export COVERAGE_DATA := $(CURDIR)/build/coverage/python
coverage-python:
	@mkdir -p build/coverage && rm -f build/coverage/python*
	@status=0; PYTHONPATH=$(CURDIR)/tests/coverage:$$PYTHONPATH $(PYTHON) -m pytest $(PYTEST_OPTIONS) \
		$(or $(COVERAGE_TESTS),tests/python) || status=$$?; \
	$(PYTHON) -m coverage combine --quiet --rcfile $$COVERAGE_PROCESS_START && \
	$(PYTHON) -m coverage report --rcfile $$COVERAGE_PROCESS_START --skip-covered --sort cover || status=$$?; exit $$status
.PHONY: coverage coverage-c coverage-python

# libFuzzer on the decoders of what the S3 device stores, and on the parsers of what a store answers. What it has learnt
# stays in build/fuzz.
FUZZ_SECONDS ?= 60
FUZZ = @mkdir -p build/fuzz/$1; build/fuzz/tests/fuzz/$2 -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096 -verbosity=0 \
	-print_final_stats=1 -artifact_prefix=build/fuzz/ $3 build/fuzz/$1
fuzz-s3: fuzz-programs ## fuzz the decoders of the S3 device for FUZZ_SECONDS=60 (needs clang)
	@mkdir -p build/fuzz/corpus; build/fuzz/tests/fuzz/s3 --seeds build/fuzz/corpus
	$(call FUZZ,corpus,s3,-max_len=16384)
fuzz-s3-replies: fuzz-programs ## fuzz the parsers of replies of a store (needs clang)
	$(call FUZZ,corpus-replies,s3-replies,-max_len=16384 -dict=tests/fuzz/s3_replies.dict)
# A run goes on from the corpus of the last one.
fuzz-s3-long: ## the same for a quarter of an hour each
	$(MAKE) FUZZ_SECONDS=900 fuzz-s3 fuzz-s3-replies
fuzz-programs:
	@$(MAKE) TARGET=fuzz CC=clang build-fuzz-programs
build-fuzz-programs:
	$(BUILD) tests/fuzz/s3 tests/fuzz/s3-replies
.PHONY: fuzz-s3 fuzz-s3-replies fuzz-s3-long fuzz-programs build-fuzz-programs

# ---- Python, nbdkit --------------------------------------------------------------

test-python: all ## run pytest: harness, analysis, lab, on loop devices
	$(PYTEST) tests/python
test-packages: deps ## build Debian packages and wheels, install them elsewhere, use them, remove them
	$(PYTEST) tests/packages
test-paper-profile: all ## run PROFILE=paper from plan to report, with a simulated clock and devices as fast as the paper's
	$(PYTEST) tests/campaigns
.PHONY: test-python test-packages test-paper-profile

NBDKIT_TESTS := $(wildcard tests/component/test_nbdkit_*.py)
test-component: plugins ## test the plugins: a real nbdkit through libnbd and fio
	$(PYTEST) $(NBDKIT_TESTS)
# The same plugins with the sanitizers inside nbdkit.
test-component-asan: ## the same with the plugins under ASan and UBSan
	@$(MAKE) TARGET=asan plugins
	USERBLK_PLUGIN_DIR=build/asan/plugins \
	USERBLK_PRELOAD=$$($(CC) -print-file-name=libasan.so):$$($(CC) -print-file-name=libubsan.so) \
	$(PYTEST) $(NBDKIT_TESTS)
.PHONY: test-component test-component-asan

# ---- FUSE -----------------------------------------------------------------------

FUSE_PROGRAMS := fuse-passthrough fuse-nullfs fuse-disk
FUSE_SUITE_TESTS := tests/component/test_fuse_suites.py
FUSE_TESTS := $(filter-out $(FUSE_SUITE_TESTS),$(wildcard tests/component/test_fuse_*.py))
fuse_programs = USERBLK_FUSE=build/$1/fuse-passthrough/userblk-passthrough \
	USERBLK_FUSE_DISK=build/$1/fuse-disk/userblk-fuse-disk USERBLK_NULLFS=build/$1/fuse-nullfs/userblk-nullfs
fuse_pytest = $(call fuse_programs,$1) $(PYTEST)

test-fuse: $(FUSE_PROGRAMS) ## test the FUSE programs through real mounts
	$(call fuse_pytest,$(TARGET)) $(FUSE_TESTS)
test-fuse-suites: fuse-passthrough fs-suites ## run pjdfstest, fsx and stress-ng on userblk-passthrough (needs cargo 1.85)
	$(call fuse_pytest,$(TARGET)) $(FUSE_SUITE_TESTS)
.PHONY: test-fuse test-fuse-suites

# The same tests with a sanitizer in the program.
test-fuse-asan $(foreach v,$(LIBFUSES),test-fuse-$v-asan): export LSAN_OPTIONS := suppressions=$(CURDIR)/fuse-passthrough/lsan.supp:print_suppressions=0
test-fuse-tsan $(foreach v,$(LIBFUSES),test-fuse-$v-tsan): export TSAN_OPTIONS := suppressions=$(CURDIR)/fuse-passthrough/tsan.supp
test-fuse-asan test-fuse-tsan: test-fuse-%:
	$(MAKE) TARGET=$* $(FUSE_PROGRAMS)
	$(call fuse_pytest,$*) $(FUSE_TESTS)
.PHONY: test-fuse-asan test-fuse-tsan

# The same with another libfuse, which must have every mode that its version can have.
define libfuse_targets
test-fuse-$1: libfuse-$1 ## test them with libfuse $1
	$(call fuse_modes,$1) $(call fuse_pytest,libfuse-$1) $$(FUSE_TESTS)
test-fuse-$1-suites: libfuse-$1 fs-suites ## the suites with libfuse $1
	$(call fuse_modes,$1) $(call fuse_pytest,libfuse-$1) $$(FUSE_SUITE_TESTS)
test-fuse-$1-asan test-fuse-$1-tsan: test-fuse-$1-%: libfuse-$1
	$$(call with_libfuse,$1,-$$*)
	$(call fuse_modes,$1) $(call fuse_pytest,libfuse-$1-$$*) $$(FUSE_TESTS)
.PHONY: test-fuse-$1 test-fuse-$1-suites test-fuse-$1-asan test-fuse-$1-tsan
endef
fuse_modes = $(if $(filter 3.18,$1),USERBLK_FUSE_ALL_MODES=1)
$(foreach v,$(LIBFUSES),$(eval $(call libfuse_targets,$v)))

# DIFFERENTIAL_SECONDS of each mode; DIFFERENTIAL_SEED repeats a run.
DIFFERENTIAL_TESTS := tests/differential/test_differential_fuse.py
DIFFERENTIAL_BLOCK_TESTS := tests/differential/test_differential_block.py
test-differential: libfuse-3.18 plugins s3-server ## compare random calls on files with an ext4, and random requests to devices with a model
	USERBLK_FUSE_ALL_MODES=1 $(call fuse_pytest,libfuse-3.18) $(DIFFERENTIAL_TESTS) $(DIFFERENTIAL_BLOCK_TESTS)
test-differential-long: libfuse-3.18 libfuse-3.17 $(FUSE_PROGRAMS) plugins s3-server ## the same for half an hour in each mode, with each libfuse
	DIFFERENTIAL_SECONDS=1800 USERBLK_FUSE_ALL_MODES=1 $(call fuse_pytest,libfuse-3.18) $(DIFFERENTIAL_TESTS)
	DIFFERENTIAL_SECONDS=1800 $(call fuse_pytest,libfuse-3.17) $(DIFFERENTIAL_TESTS)
	DIFFERENTIAL_SECONDS=1800 $(call fuse_pytest,$(TARGET)) $(DIFFERENTIAL_TESTS)
	DIFFERENTIAL_SECONDS=300 $(call fuse_pytest,$(TARGET)) $(DIFFERENTIAL_BLOCK_TESTS)
# Each for SECONDS= (60) at most.
test-differential-mutants: libfuse-3.18 ## check that the search finds the defects of tests/differential/mutants: SECONDS=
	@USERBLK_FUSE_ALL_MODES=1 $(PYTHON) tests/differential/mutants/run.py $(if $(SECONDS),--seconds $(SECONDS))
.PHONY: test-differential test-differential-long test-differential-mutants

# An interrupted run of a commit goes on. Debian has no package of xfstests; other distributions have.
XFSTESTS_SYSTEMS ?= fuse,fuse-nocache,fuse-passthrough,fuse-io-uring,fuse-disk
XFSTESTS_RECORD = build/xfstests/$(shell git rev-parse --short HEAD)
test-xfstests: libfuse-3.18 ## run the generic quick tests of XFSTESTS=DIR on userblk-passthrough and over userblk-fuse-disk, compared with native
ifdef XFSTESTS
	$(call fuse_programs,libfuse-3.18) $(PYTHON) tests/differential/xfstests.py --xfstests '$(XFSTESTS)' \
		--systems $(XFSTESTS_SYSTEMS) --record $(XFSTESTS_RECORD)
	$(call fuse_programs,libfuse-3.18) $(PYTHON) tests/differential/xfstests.py --xfstests '$(XFSTESTS)' \
		--systems fuse,fuse-disk --fs xfs --record $(XFSTESTS_RECORD)
else
	@echo "SKIPPED [1] xfstests: XFSTESTS= does not say where it is installed, and Debian has no package of it"
	@test "$$CI" != true
endif
# A test takes half a minute on emulated CPUs, and there are hundreds; XFSTESTS_TESTS="generic/001 ...": these.
# XFSTESTS_FS=xfs: on that file system only. With LINUX=DIR, the source of Linux 7.0 or newer, in a User-Mode Linux of
# this machine's root instead of the lab's guest: several times as fast, where there is no KVM.
XFSTESTS_FRAMEWORKS ?= nbdkit,buse,tcmu,tcmu-threads,ublk-workers,ublk-uring
XFSTESTS_FS ?= ext4 xfs
XFSTESTS_GUEST = $(if $(LINUX),PYTHONPATH=python:tests/support tests/lab/user_mode_linux.py --linux '$(LINUX)', \
	lab/run --timeout 0 --disk-size 6G)
test-xfstests-lab: ## run the same over the disk of each framework, in the lab, compared with native
ifdef XFSTESTS
	$(if $(LINUX),$(MAKE) all,lab/make-in-root all)
	@mkdir -p $(XFSTESTS_RECORD)-lab
	@failed=; set -x; for fs in $(XFSTESTS_FS); do $(XFSTESTS_GUEST) --extra '$(XFSTESTS)' --share $(XFSTESTS_RECORD)-lab -- \
		sh -c 'cp -a /extra /tmp/xfstests && PYTHONPATH=/userblk/python:/userblk/tests/support \
		exec python3 tests/differential/xfstests.py --xfstests /tmp/xfstests --record /results --fs '$$fs' \
		--systems $(XFSTESTS_FRAMEWORKS) $(XFSTESTS_TESTS)' || failed+=" $$fs"; done; test -z "$$failed"
else
	@echo "SKIPPED [1] xfstests in the lab: XFSTESTS= does not say where it is installed, and Debian has no package of it"
	@test "$$CI" != true
endif
.PHONY: test-xfstests test-xfstests-lab

# Conformance suites, from the Rust registry. Debian 12's cargo is too old for them; its cargo-web, rustup's and
# Debian 13's (1.85) are not.
# A stamp for each version: another one replaces the program in build/deps/bin.
CRATES := build/deps/crates
FS_SUITES := $(CRATES)/pjdfstest-0.2.2 $(CRATES)/fsx-0.3.2
# And what userblk-ublk is compared with, without its device in a GPU's memory.
RUBLK := $(CRATES)/rublk-0.2.15
$(RUBLK): CRATE_OPTIONS := --no-default-features
$(FS_SUITES) $(RUBLK): CRATE = $(subst -, ,$(@F))
$(FS_SUITES) $(RUBLK):
	@command -v cargo >/dev/null || { echo "$(firstword $(CRATE)): needs cargo 1.85 or later; run: apt-get install" \
		"$$(apt-cache show cargo-web >/dev/null 2>&1 && echo cargo-web || echo cargo)" >&2; exit 2; }
	cargo install --locked --quiet --root build/deps --version $(lastword $(CRATE)) $(CRATE_OPTIONS) $(firstword $(CRATE))
	@mkdir -p $(@D); rm -f $(@D)/$(firstword $(CRATE))-*; touch $@
fs-suites: $(FS_SUITES) ## get pjdfstest and fsx for the file system's tests (needs cargo 1.85)
.PHONY: fs-suites

# ---- the S3 device's simulation ---------------------------------------------------

# Built in a place of its own, with the frames of its stacks; SIMULATION_TARGET= another, for another tree.
SIMULATION_TARGET ?= sim
SIMULATION_KIND ?= sim
SIMULATE = $(MAKE) TARGET=$(SIMULATION_TARGET) KIND=$(SIMULATION_KIND) s3-simulation && \
	build/$(SIMULATION_TARGET)/tests/simulation/s3_simulation

# The day's seeds, unless SEED= says which: a failure is shrunk, and the command that replays it printed.
simulate-s3: ## run the S3 device on a simulated machine: SEED=, SEEDS=, SECONDS= (60)
	@$(SIMULATE) $(if $(SEED),--seed $(SEED) $(if $(SEEDS)$(SECONDS),,--seeds 1),--seed $$(date +%Y%m%d)000000) \
		$(if $(SEEDS),--seeds $(SEEDS)) $(if $(SECONDS),--seconds $(SECONDS),$(if $(SEED)$(SEEDS),,--seconds 60)) $(SIMULATION_OPTIONS)
simulate-s3-long: ## the same for an hour
	$(MAKE) SECONDS=3600 simulate-s3
# Under the sanitizers, where schedules take longer; and the same schedules twice.
simulate-s3-asan: ## the same under ASan and UBSan
	$(MAKE) SIMULATION_TARGET=sim-asan SIMULATION_KIND=asan SECONDS=$(or $(SECONDS),60) simulate-s3
simulate-s3-twice: ## check that schedules are the same each time
	$(MAKE) SEEDS=$(or $(SEEDS),20) SIMULATION_OPTIONS=--twice simulate-s3
# Each for SECONDS= (600) at most; all of them unless MUTANTS= names some.
simulate-s3-mutants: ## check that the simulation finds the defects of tests/s3/mutants: MUTANTS=, SECONDS=
	@$(PYTHON) tests/s3/mutants/run.py $(if $(SECONDS),--seconds $(SECONDS)) $(MUTANTS)
.PHONY: simulate-s3 simulate-s3-long simulate-s3-asan simulate-s3-twice simulate-s3-mutants

# ---- the S3 device's tests ------------------------------------------------------

# With real S3 servers, of pinned versions, from their registries.
s3-server: ## build versitygw, an S3 server for the tutorial and the tests (Go and a network; once)
	harness/get-s3-server versitygw
test-s3: plugins s3-tool s3-server s3-client-driver s3-volume-driver ## test the S3 device: data, faults, two writers, 200 crashes
	$(PYTEST) tests/s3
.PHONY: s3-server test-s3

# What was done is kept in build/crash: an interrupted run, or one that ended after CRASH_SECONDS, goes on.
CRASH_POINTS ?= 10000
test-crash: plugins s3-server s3-volume-driver ## crash the S3 device CRASH_POINTS times (10000), and check the volume after each
	@mkdir -p build/crash
	$(PYTHON) tests/support/crash.py --points $(CRASH_POINTS) --results build/crash/results --keep build/crash \
		$(if $(CRASH_SECONDS),--time $(CRASH_SECONDS))
test-s3-outage: plugins s3-server ## run the S3 device through outages of 5 minutes
	USERBLK_S3_OUTAGE=300 $(PYTEST) tests/s3/test_device_faults.py -k test_outage
test-s3-distributed: test-s3-minio test-s3-garage ## run the S3 device over four nodes of MinIO and three of Garage (cargo), which are killed
.PHONY: test-crash test-s3-outage test-s3-distributed

# What does not look at a store from behind. Garage keeps no second writer out.
DISTRIBUTED_TESTS := $(patsubst %,tests/s3/%.py,distributed test_device_data test_device_writers test_snapshots test_s3_engine_maintenance)
DISTRIBUTED_CRASH_POINTS ?= 100
test-s3-minio test-s3-garage: test-s3-%: plugins s3-tool s3-volume-driver
	harness/get-s3-server $*
	USERBLK_S3_STORE=$* tests/s3/own-network $(PYTEST) $(if $(filter garage,$*),-m "not fencing") $(DISTRIBUTED_TESTS)
	tests/s3/own-network $(PYTHON) tests/support/crash.py --store $* --points $(DISTRIBUTED_CRASH_POINTS)
.PHONY: test-s3-minio test-s3-garage

# The client's tests with a sanitizer in it.
test-s3-client-asan test-s3-client-tsan: test-s3-client-%: s3-server
	$(MAKE) TARGET=$* s3-client-driver
	USERBLK_S3_DRIVER=build/$*/tests/s3/client_driver $(PYTEST) $(wildcard tests/s3/test_client*.py)
.PHONY: test-s3-client-asan test-s3-client-tsan

# The engine with all its threads over a real store, for LOAD_SECONDS in each of four volumes.
LOAD_SECONDS ?= 3
test-s3-load-asan test-s3-load-tsan: test-s3-load-%: s3-server
	$(MAKE) TARGET=$* s3-volume-driver
	USERBLK_S3_VOLUME_DRIVER=build/$*/tests/s3/volume_driver USERBLK_S3_LOAD=$(LOAD_SECONDS) $(PYTEST) tests/s3/test_mixed_load.py
test-s3-load-long: ## run the S3 device under a mixed load and the sanitizers, for longer
	$(MAKE) LOAD_SECONDS=120 test-s3-load-asan test-s3-load-tsan
.PHONY: test-s3-load-asan test-s3-load-tsan test-s3-load-long

# Snapshots, clones, garbage collection, the control socket and I/O at once with a sanitizer in the device.
test-s3-snapshots-asan test-s3-snapshots-tsan: test-s3-snapshots-%: plugins s3-server s3-tool
	$(MAKE) TARGET=$* s3-volume-driver
	USERBLK_S3_VOLUME_DRIVER=build/$*/tests/s3/volume_driver $(PYTEST) tests/s3/test_snapshots.py tests/s3/test_control_threads.py
.PHONY: test-s3-snapshots-asan test-s3-snapshots-tsan

# ---- in the lab -----------------------------------------------------------------

# Without pytest-timeout: what hangs is named after 15 minutes, and ends with the guest.
GUEST_TESTS = env PYTHONPATH=/userblk/python:/userblk/tests/support CI=$(CI) python3 -m pytest -q -rfEs -p no:cacheprovider $(SLOWEST) -o faulthandler_timeout=900
LAB_WITH_STORE = $(PYTHON) tests/lab/with_store.py

test-lab: s3-server ## test the lab itself, then the disks and file systems on its real kernel, in one boot
	lab/make-in-root all
	$(PYTEST) tests/lab/test_lab.py tests/lab/test_virtual_time.py
	$(LAB_WITH_STORE) --timeout 4200 -- $(GUEST_TESTS) -m "not long" tests/lab/guest \
		tests/python/test_harness_safety.py # once more where there are dm and a root on a disk
test-tutorial: s3-server ## run the commands of docs/tutorial.md, in a clone and in the lab
	$(PYTEST) tests/lab/test_tutorial.py
test-lab-instructions: ## test that counts of instructions repeat beside other load
	$(PYTEST) tests/lab/test_instructions.py
test-explain: ## test userblk explain with a small campaign
	lab/make-in-root all
	$(PYTEST) tests/lab/test_explain.py
test-two-hosts: all ## test campaigns on two guests over ssh, one of which is lost midway
	lab/make-in-root all
	$(PYTEST) tests/lab/test_two_hosts.py
# GATE_RUNS= (10) runs without a change.
test-gate: ## check that make bench-gate detects small costs, and nothing else: half an hour and more
	lab/make-in-root all
	$(PYTEST) tests/lab/test_gate.py
# test-attach has more cycles, on the same kernel.
ATTACHED_ELSEWHERE := --deselect tests/lab/guest/test_attach.py
test-lab-long: s3-server fs-suites ## run the longer tests of the lab: every combination, many cycles (needs cargo 1.85)
	lab/make-in-root all
	$(LAB_WITH_STORE) --timeout 7200 -- $(GUEST_TESTS) -m long tests/lab/guest $(if $(LAB_KERNEL),,$(ATTACHED_ELSEWHERE))
	$(LAB_WITH_STORE) --timeout 9000 -- env DIFFERENTIAL_SECONDS=300 $(GUEST_TESTS) -m 'not long' tests/lab/guest/test_differential.py
	$(LAB_WITH_STORE) --timeout 3600 -- env UBLK_LIVES_SECONDS=600 $(GUEST_TESTS) tests/lab/guest/test_ublk_lives.py
# Prints the seconds of each framework, and what memory it left.
ATTACH_CYCLES ?= 1000
test-attach: ## add and remove disks of each framework ATTACH_CYCLES (1000) times, and 64 at once; nothing may be left
	lab/make-in-root all
	lab/run --timeout 14400 -- env ATTACH_CYCLES=$(ATTACH_CYCLES) $(GUEST_TESTS) -rsP tests/lab/guest/test_attach.py
test-lab-s3: s3-server fs-suites ## test file systems on S3 disks in the lab: mkfs to fsck, fio verify, fsx, an outage of the store
	lab/make-in-root plugins handlers
	$(LAB_WITH_STORE) --timeout 3600 -- $(GUEST_TESTS) tests/lab/guest/test_s3_paths.py tests/lab/guest/test_tcmu_s3.py
test-lab-backports: ## run test-lab on the newer kernel
	LAB_KERNEL=backports $(MAKE) test-lab
test-lab-long-backports: ## run test-lab-long on the newer kernel
	LAB_KERNEL=backports $(MAKE) test-lab-long
# What the release is too old for is skipped.
test-lab-bullseye: export LAB_RELEASE := bullseye
test-lab-bullseye: s3-server ## run the guest's part of test-lab on Debian 11, with nbdkit and tcmu-runner of the paper's time
	lab/make-in-root all
	$(LAB_WITH_STORE) --timeout 3000 -- $(GUEST_TESTS) -m "not long" tests/lab/guest
.PHONY: test-lab test-tutorial test-lab-instructions test-explain test-gate test-two-hosts test-attach \
	test-lab-long test-lab-s3 test-lab-backports test-lab-long-backports test-lab-bullseye

# ---- benchmarks of parts, run by hand: tests/bench --------------------------------

bench-s3-map: ## measure memory and time of the S3 device's map, at 1 TiB
bench-s3-transform: ## measure the CPU time of the S3 device's compression and encryption
bench-s3-compaction: ## measure compaction over a store of 20 ms
bench-s3-map bench-s3-transform bench-s3-compaction: bench-s3-%:
	$(BUILD) tests/bench/s3_$*_bench
	build/$(TARGET)/tests/bench/s3_$*_bench
bench-fuse-programs: libfuse-3.18 ## build the programs that tests/bench/bench_fuse.py compares
	$(BUILD) tests/bench/metadata
# BENCH: options of tests/bench/bench_ublk.py.
bench-ublk: $(RUBLK) ## measure userblk-ublk against rublk in the lab, in pairs (needs cargo 1.85)
	lab/make-in-root ublk
	@mkdir -p results
	lab/run --timeout 0 --share results -- python3 tests/bench/bench_ublk.py --json /results/bench-ublk.json $(BENCH)
bench-gate: ## check whether this checkout is slower than BASE=REVISION, by a few cells in virtual time (GATE: options of tests/bench/bench_gate.py)
	@test -n "$(BASE)" || { echo "BASE= is missing: name a revision, as in make bench-gate BASE=origin/main" >&2; exit 2; }
	$(PYTHON) tests/bench/bench_gate.py --base '$(BASE)' $(GATE)
.PHONY: bench-s3-map bench-s3-transform bench-s3-compaction bench-fuse-programs bench-ublk bench-gate
