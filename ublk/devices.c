/* SPDX-License-Identifier: BSD-3-Clause */
#include <dirent.h>
#include <dlfcn.h>
#include <err.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/backend.h"
#include "ublk/devices.h"

#define MODULES "../lib/userblk-devices"

static bool is_linked_in(const char *name)
{
	const struct backend_ops *const *devices = backend_devices();

	for (; *devices; devices++)
		if (strcmp(name, backend_kind(*devices).name) == 0)
			return true;
	return false;
}

void ublk_devices_load_unless(const char *name)
{
	char directory[PATH_MAX], module[2 * PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", directory, sizeof directory - sizeof MODULES);
	const struct dirent *entry;
	DIR *modules;

	if (length < 0 || (name && is_linked_in(name)))
		return;
	directory[length] = '\0';
	strcpy(strrchr(directory, '/') + 1, MODULES);
	modules = opendir(directory);
	while (modules && (entry = readdir(modules)) != NULL) {
		snprintf(module, sizeof module, "%s/%s", directory, entry->d_name);
		if (fnmatch("*.so", entry->d_name, 0) == 0 && !dlopen(module, RTLD_NOW))
			warnx("%s", dlerror());
	}
	if (modules)
		closedir(modules);
}
