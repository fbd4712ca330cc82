# SPDX-License-Identifier: BSD-3-Clause
# The FUSE programs with other releases of libfuse: the Makefile includes this.

# Debian's own sources of the libfuse of other releases, built with io_uring, which Debian leaves out:
# the suite and the version of the source package.
LIBFUSES := 3.17 3.18
LIBFUSE_SOURCE_3.17 := trixie 3.17.2-3
LIBFUSE_SOURCE_3.18 := sid 3.18.3-1
libfuse_place = build/libfuse-$1/$(lastword $(LIBFUSE_SOURCE_$1))
$(foreach v,$(LIBFUSES),$(call libfuse_place,$v)/VERSION): build/libfuse-%/VERSION: fuse-passthrough/get-libfuse
	fuse-passthrough/get-libfuse $(LIBFUSE_SOURCE_$(*D)) $(@D)

# $(call with_libfuse,VERSION,SUFFIX): make the FUSE programs with that library, in build/libfuse-VERSION SUFFIX.
with_libfuse = $(MAKE) TARGET=libfuse-$1$2 KIND=$(or $(patsubst -%,%,$2),libfuse) OPTIONS="-Dnbdkit=disabled -Dtcmu=disabled -Ds3=disabled -Dublk=disabled \
	-Drocksdb=disabled -Dleveldb=disabled -Dsqlite=disabled \
	-Dpkg_config_path=$(CURDIR)/$(call libfuse_place,$1)/lib/pkgconfig -Dc_link_args=-Wl,-rpath,$(CURDIR)/$(call libfuse_place,$1)/lib" \
	fuse-passthrough fuse-nullfs fuse-disk
libfuse-3.17: build/libfuse-3.17/3.17.2-3/VERSION ## build the FUSE programs with libfuse 3.17, from Debian's sources
libfuse-3.18: build/libfuse-3.18/3.18.3-1/VERSION ## build the FUSE programs with libfuse 3.18, from Debian's sources
$(LIBFUSES:%=libfuse-%): libfuse-%:
	$(call with_libfuse,$*)
.PHONY: $(LIBFUSES:%=libfuse-%)
