# SPDX-License-Identifier: BSD-3-Clause
"""Campaigns: what runs, where, how often, and what is kept of it."""
