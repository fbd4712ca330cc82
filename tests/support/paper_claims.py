# SPDX-License-Identifier: BSD-3-Clause
"""What the BDUS paper's own numbers say of its claims."""

from __future__ import annotations

# What the paper's text says and its tables do not bear out, as the claims are read.
CONTRADICTED = {
    "web-server-sata-bdus-latency",
    "bdus-surpassed",
    "bdus-fuse-cpu",
}
OMITTED = {"fuse-nvme-write-16th", "web-server-nvme-fuse"}  # FUSE lost 99.8 %: cells that the paper leaves out
PARTLY_OMITTED = {"files-nvme-variability", "bdus-fuse-performance"}  # the same cells among others
