# SPDX-License-Identifier: BSD-3-Clause
"""Counts what each Python process runs that inherits PYTHONPATH and COVERAGE_PROCESS_START of `make coverage`."""

import coverage

coverage.process_startup()
