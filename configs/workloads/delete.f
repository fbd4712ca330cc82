# SPDX-License-Identifier: BSD-3-Clause
# $nthreads threads delete 4 KiB files until none is left.
# Ends then or after $runtime seconds.

set $dir=/mnt/userblk
set $nthreads=1
set $nfiles=4000000
set $filesize=4k
set $dirwidth=1000
set $runtime=900

set mode quit alldone

define fileset name=datafiles,path=$dir,entries=$nfiles,size=$filesize,dirwidth=$dirwidth,dirgamma=0,prealloc=100

define process name=worker,instances=1
{
  thread name=worker,memsize=4k,instances=$nthreads
  {
    flowop deletefile name=delete1,filesetname=datafiles
  }
}

create files
run $runtime
