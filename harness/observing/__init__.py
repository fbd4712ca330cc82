# SPDX-License-Identifier: BSD-3-Clause
"""What is seen while a workload runs: the machine, costs, warm-up."""
