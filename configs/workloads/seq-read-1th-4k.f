# SPDX-License-Identifier: BSD-3-Clause
# Sequential reads of 4 KiB: one thread opens a file of its own and reads as much as it holds.
# Ends with the last file or after $runtime seconds.

set $dir=/mnt/userblk
set $nthreads=1
set $filesize=64g
set $iosize=4k
set $iters=16777216	# filesize / iosize
set $runtime=900

set mode quit alldone

define fileset name=datafiles,path=$dir,entries=$nthreads,size=$filesize,dirwidth=32,dirgamma=0,prealloc=100

define process name=worker,instances=1
{
  thread name=worker,memsize=$iosize,instances=$nthreads
  {
    flowop openfile name=open1,filesetname=datafiles,fd=1
    flowop read name=read1,fd=1,iosize=$iosize,iters=$iters
    flowop closefile name=close1,fd=1
    flowop finishoncount name=finish1,value=1
  }
}

create files
run $runtime
