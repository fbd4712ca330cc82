# SPDX-License-Identifier: BSD-3-Clause
# What the machine needs, Debian packages, and where they come from: the Makefile includes this.

# By purpose, as configs/packages.csv has them: build, bench, report, lab, s3, apps, files, test, package.
deps-%: build/deps/%.stamp
	@:

build/deps/%.stamp: configs/packages.csv packaging/install-packages
	@mkdir -p $(@D)
	@packaging/install-packages $*
	$(if $(filter build,$*),@command -v tcmu-runner >/dev/null && tcmu-handlers/get-headers build/deps >/dev/null || \
		echo "deps: the tcmu-runner handlers are left out: its headers could not be fetched" >&2)
	@touch $@
.PRECIOUS: build/deps/%.stamp

CHECKERS := build/deps/checkers.stamp
deps: deps-build deps-bench deps-report deps-lab deps-s3 deps-apps deps-test deps-package $(CHECKERS) ## install what everything here needs, from Debian's packages (root)

$(CHECKERS): tests/requirements.txt build/deps/test.stamp
	$(PYTHON) -m venv --system-site-packages build/venv
	build/venv/bin/pip install -q --disable-pip-version-check -r tests/requirements.txt
	@touch $@

tcmu-headers: ## fetch the headers of the installed tcmu-runner, from Debian's source package
	@tcmu-handlers/get-headers build/deps >/dev/null
.PHONY: deps tcmu-headers
