# SPDX-License-Identifier: BSD-3-Clause
"""userblk: what it costs to move a block device or file system into user space."""

__version__ = "0.2.0"
