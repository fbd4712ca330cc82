# SPDX-License-Identifier: BSD-3-Clause
# $nthreads threads open, read and close 4 KiB files in the order of the tree,
# until $finish operations are done.
# Ends then or after $runtime seconds.

set $dir=/mnt/userblk
set $nthreads=1
set $nfiles=1000000
set $filesize=4k
set $dirwidth=1000
set $runtime=900
set $finish=3000000	# operations: one pass over the files

set mode quit alldone

define fileset name=datafiles,path=$dir,entries=$nfiles,size=$filesize,dirwidth=$dirwidth,dirgamma=0,prealloc=100

define process name=worker,instances=1
{
  thread name=worker,memsize=4k,instances=$nthreads
  {
    flowop openfile name=open1,filesetname=datafiles,fd=1
    flowop readwholefile name=read1,fd=1,iosize=4k
    flowop closefile name=close1,fd=1
    flowop finishoncount name=finish1,value=$finish
  }
}

create files
run $runtime
