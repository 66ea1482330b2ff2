#!/bin/sh
# PID 1 of a guest: the file systems and cgroup v2 controllers that a container runtime expects, then the command server.
export PATH=/usr/sbin:/usr/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm /dev/mqueue
mount -t devpts devpts /dev/pts
mount -t mqueue mqueue /dev/mqueue
for directory in /dev/shm /run /tmp; do mount -t tmpfs lab "$directory"; done
mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup # as systemd mounts it
for controller in cpuset cpu memory pids io hugetlb; do
    echo "+$controller" 2>/dev/null >/sys/fs/cgroup/cgroup.subtree_control
done
modprobe -a overlay virtio_pci virtio_console # the latter are built into most kernels
# the links that a device file system of its own would have: OCI runtimes open /dev/stdin
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
ip link set lo up
hostname guest
/usr/bin/python3 -S /sbin/lab-server &
wait $! # waiting also collects the orphans that containers leave behind
