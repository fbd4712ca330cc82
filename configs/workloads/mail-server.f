# SPDX-License-Identifier: BSD-3-Clause
# A mail server: each thread deletes a mail, stores one, marks one as read, reads one;
# what is stored is synced. All mails are in one directory, whatever width is drawn for it.

set $dir=/mnt/userblk
set $nprocesses=1
set $nthreads=16
set $nfiles=1500000
set $filesize=16k
set $dirwidth=1500000000
set $iosize=1m
set $appendsize=16k
set $memsize=10m
set $runtime=3600

set mode quit timeout

define fileset name=bigfileset,path=$dir,entries=$nfiles,size=$filesize,dirwidth=$dirwidth,prealloc=80

define process name=mailserver,instances=$nprocesses
{
  thread name=mailserver,memsize=$memsize,instances=$nthreads
  {
    flowop deletefile name=deletefile1,filesetname=bigfileset
    flowop createfile name=createfile2,filesetname=bigfileset,fd=1
    flowop appendfilerand name=appendfilerand2,iosize=$appendsize,fd=1
    flowop fsync name=fsyncfile2,fd=1
    flowop closefile name=closefile2,fd=1
    flowop openfile name=openfile3,filesetname=bigfileset,fd=1
    flowop readwholefile name=readfile3,fd=1,iosize=$iosize
    flowop appendfilerand name=appendfilerand3,iosize=$appendsize,fd=1
    flowop fsync name=fsyncfile3,fd=1
    flowop closefile name=closefile3,fd=1
    flowop openfile name=openfile4,filesetname=bigfileset,fd=1
    flowop readwholefile name=readfile4,fd=1,iosize=$iosize
    flowop closefile name=closefile4,fd=1
  }
}

create files
run $runtime
