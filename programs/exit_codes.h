/* SPDX-License-Identifier: BSD-3-Clause */
/* Exit codes of all programs beside EXIT_SUCCESS and EXIT_FAILURE (what the machine refuses). */
#ifndef USERBLK_EXIT_CODES_H
#define USERBLK_EXIT_CODES_H

#define EXIT_USAGE 2 /* a mistake that a user can correct: nothing was changed */

#endif
