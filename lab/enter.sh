# SPDX-License-Identifier: BSD-3-Clause
# sh enter.sh ROOT CHECKOUT COMMAND [ARG...]: run COMMAND in ROOT with the checkout at
# /userblk, and LAB_EXTRA, if set, at /extra. Runs in a mount namespace of its own, so every
# mount ends with it.
set -e
root=$1
checkout=$2
shift 2
mount --bind "$checkout" "$root/userblk"
if [ -n "$LAB_EXTRA" ]; then
	mount --bind "$LAB_EXTRA" "$root/extra"
	unset LAB_EXTRA
fi
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmp "$root/tmp"
if [ -e /etc/resolv.conf ]; then # not on each machine without a network
	touch "$root/etc/resolv.conf"
	mount --bind "$(readlink -f /etc/resolv.conf)" "$root/etc/resolv.conf"
fi
exec chroot "$root" "$@"
