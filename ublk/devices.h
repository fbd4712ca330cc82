/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Devices that are not linked in, because their libraries take longer to load than a disk
 * takes to be there: modules in ../lib/userblk-devices/, seen from the program.
 */
#ifndef USERBLK_UBLK_DEVICES_H
#define USERBLK_UBLK_DEVICES_H

/*
 * Unless name is linked in, loads them all, so that they are among backend_devices(). Name may
 * be NULL. One that cannot be loaded is reported on standard error, and is not there.
 */
void ublk_devices_load_unless(const char *name);

#endif
