# SPDX-License-Identifier: BSD-3-Clause
# $nthreads threads create a file each and write $iters times $iosize sequentially.
# Ends then or after $runtime seconds.

set $dir=/mnt/userblk
set $nthreads=1
set $nfiles=1
set $filesize=60g
set $iosize=4k
set $iters=15728640
set $runtime=900

set mode quit alldone

define fileset name=datafiles,path=$dir,entries=$nfiles,size=$filesize,dirwidth=32,dirgamma=0

define process name=worker,instances=1
{
  thread name=worker,memsize=$iosize,instances=$nthreads
  {
    flowop createfile name=create1,filesetname=datafiles,fd=1
    flowop write name=write1,fd=1,iosize=$iosize,iters=$iters
    flowop closefile name=close1,fd=1
    flowop finishoncount name=finish1,value=1
  }
}

create files
run $runtime
