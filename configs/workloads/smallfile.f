# SPDX-License-Identifier: BSD-3-Clause
# $nthreads threads create small files and sync each, until all exist.
# Ends then or after $runtime seconds.

set $dir=/mnt/userblk
set $nthreads=1
set $nfiles=10000
set $filesize=1k
set $dirwidth=100
set $runtime=900

set mode quit alldone

define fileset name=datafiles,path=$dir,entries=$nfiles,size=$filesize,dirwidth=$dirwidth,dirgamma=0

define process name=worker,instances=1
{
  thread name=worker,memsize=4k,instances=$nthreads
  {
    flowop createfile name=create1,filesetname=datafiles,fd=1
    flowop writewholefile name=write1,srcfd=1,fd=1
    flowop fsync name=sync1,fd=1
    flowop closefile name=close1,fd=1
  }
}

create files
run $runtime
