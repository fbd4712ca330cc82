# SPDX-License-Identifier: BSD-3-Clause
"""Programs that put load on a device, and what they report."""
