# SPDX-License-Identifier: BSD-3-Clause
# The documentation, its tables and the manual pages: the Makefile includes this.

SITE := build/site-venv/bin/mkdocs
$(SITE): docs/requirements.txt
	$(PYTHON) -m venv $(@D)/..
	$(@D)/pip install -q --disable-pip-version-check -r $<
	@touch $@
docs: $(SITE) ## build the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(SITE) build -q --strict
docs-serve: $(SITE) ## show the documentation on http://127.0.0.1:8000
	NO_MKDOCS_2_WARNING=1 $(SITE) serve
manuals: all ## copy what --help says of options and parameters into the manual pages
	packaging/manual build/$(TARGET)
docs-tables: ## make the tables and figures in docs again, from the campaigns in docs/data
	docs/make-tables
.PHONY: docs docs-serve docs-tables manuals
