# SPDX-License-Identifier: BSD-3-Clause
"""Statistics and tables from the summaries of runs; nothing here runs anything."""
