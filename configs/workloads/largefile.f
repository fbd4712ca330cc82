# SPDX-License-Identifier: BSD-3-Clause
# $nthreads threads write a new file each, $iters times 4 KiB, and sync it at the end.
# Ends then or after $runtime seconds.

set $dir=/mnt/userblk
set $nthreads=1
set $nfiles=1
set $filesize=100m
set $iters=25600
set $runtime=900

set mode quit alldone

define fileset name=datafiles,path=$dir,entries=$nfiles,size=$filesize,dirwidth=32,dirgamma=0

define process name=worker,instances=1
{
  thread name=worker,memsize=4k,instances=$nthreads
  {
    flowop createfile name=create1,filesetname=datafiles,fd=1
    flowop write name=write1,fd=1,iosize=4k,iters=$iters
    flowop fsync name=sync1,fd=1
    flowop closefile name=close1,fd=1
  }
}

create files
run $runtime
