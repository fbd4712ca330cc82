# SPDX-License-Identifier: BSD-3-Clause
# A file server: each thread creates and writes a file, appends to one, reads one,
# deletes one and looks one up.

set $dir=/mnt/userblk
set $nthreads=50
set $nfiles=200000
set $filesize=128k
set $dirwidth=20
set $iosize=1m
set $appendsize=16k
set $memsize=10m
set $runtime=3600

set mode quit timeout

define fileset name=bigfileset,path=$dir,entries=$nfiles,size=$filesize,dirwidth=$dirwidth,prealloc=80

define process name=fileserver,instances=1
{
  thread name=fileserver,memsize=$memsize,instances=$nthreads
  {
    flowop createfile name=createfile1,filesetname=bigfileset,fd=1
    flowop writewholefile name=wrtfile1,srcfd=1,fd=1,iosize=$iosize
    flowop closefile name=closefile1,fd=1
    flowop openfile name=openfile1,filesetname=bigfileset,fd=1
    flowop appendfilerand name=appendfilerand1,iosize=$appendsize,fd=1
    flowop closefile name=closefile2,fd=1
    flowop openfile name=openfile2,filesetname=bigfileset,fd=1
    flowop readwholefile name=readfile1,fd=1,iosize=$iosize
    flowop closefile name=closefile3,fd=1
    flowop deletefile name=deletefile1,filesetname=bigfileset
    flowop statfile name=statfile1,filesetname=bigfileset
  }
}

create files
run $runtime
