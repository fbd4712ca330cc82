# SPDX-License-Identifier: BSD-3-Clause
"""This machine: its block devices, file systems, programs and settings, and how each is put back."""
