# SPDX-License-Identifier: BSD-3-Clause
# A database: processes of its clients read random blocks and compute. After each read, they notify the log's writer and the
# writers of the tables, which write, synced, once there are enough.

set $dir=/mnt/userblk
set $nshadows=200
set $ndbwriters=10
set $nfiles=10
set $filesize=10m
set $logfilesize=10m
set $iosize=2k
set $logsize=256k
set $memsize=1m
set $usermode=200000
set $eventrate=0
set $runtime=60

set mode quit timeout

eventgen rate=$eventrate

define fileset name=datafiles,path=$dir,size=$filesize,entries=$nfiles,dirwidth=1024,prealloc=100
define fileset name=logfile,path=$dir,size=$logfilesize,entries=1,dirwidth=1024,prealloc=100

define process name=lgwr,instances=1
{
  thread name=lgwr,memsize=$memsize
  {
    flowop aiowrite name=lg-write,filesetname=logfile,iosize=$logsize,random,dsync
    flowop aiowait name=lg-aiowait
    flowop semblock name=lg-block,value=3200,highwater=1000
  }
}

define process name=dbwr,instances=$ndbwriters
{
  thread name=dbwr,memsize=$memsize
  {
    flowop aiowrite name=dbwrite-a,filesetname=datafiles,iosize=$iosize,random,iters=100,opennext,dsync
    flowop hog name=dbwr-hog,value=10000
    flowop semblock name=dbwr-block,value=1000,highwater=2000
    flowop aiowait name=dbwr-aiowait
  }
}

define process name=shadow,instances=$nshadows
{
  thread name=shadow,memsize=$memsize
  {
    flowop read name=shadowread,filesetname=datafiles,iosize=$iosize,random,opennext
    flowop hog name=shadowhog,value=$usermode
    flowop sempost name=shadow-post-lg,value=1,target=lg-block,blocking
    flowop sempost name=shadow-post-dbwr,value=1,target=dbwr-block,blocking
    flowop eventlimit name=random-rate
  }
}

create files
run $runtime
