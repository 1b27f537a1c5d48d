#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Process 1 of one side, in namespaces of its own (run.sh starts it): makes a host named "ptl" with an OpenPBS of its own, and gpuosd beside pbs_mom on the
# side "gpuos", and runs tests there. Arguments: side, prefix of PBS, folder of the sides, folder test/ of OpenPBS, gpuos's programs, then test files,
# each with ":" and names of tests where not all of it is meant.
set -eu
side=$1 pbs=$2 out=$3 test=$4 programs=$5 kit=$(dirname "$(readlink -f "$0")")
shift 5
own=$out/$side
# What an earlier run has left is kept beside this one.
[ ! -e "$own/host" ] || mv "$own/host" "$own/host.$(date +%s)"
mkdir -p "$own/log" "$own"/host/{etc,home,spool,tmp}
host=$own/host
chmod 1777 "$host/tmp"

mount -t proc -o nosuid,nodev,noexec proc /proc
echo ptl >/proc/sys/kernel/hostname
ip link set lo up
ip address add 10.77.0.1/32 dev lo

# Groups and users of PTL's pbs_testusers.py, with their numbers.
cp -a /etc/. "$host/etc"
for group in tstgrp0{0..7} pbs:901 agt:1146; do
    [[ $group == *:* ]] || group=$group:190${group: -1}
    groupadd --prefix "$host" -g "${group#*:}" "${group%:*}"
done
for user in pbsuser:4359:0 pbsuser1:4361:0,1,2 pbsuser2:4362:0,1,3 pbsuser3:4363:0,1,4 pbsuser4:4364:1,4,5 pbsuser5:4365:2,4,6 pbsuser6:4366:3,4,7 \
    pbsuser7:4368:1 pbsother:4358:0,2,pbs,agt pbstest:4355:0,2,pbs,agt tstusr00:11000:0 tstusr01:11001:0 pbsbuild:9000:0 pbsdata:4372:0 pbsmgr:4367:0 \
    pbsoper:4356:0,2,pbs,agt pbsadmin:4357:0,2,pbs,agt pbsroot:4371:0,2; do
    IFS=: read -r name number of <<<"$user"
    useradd --prefix "$host" -u "$number" -g "tstgrp0${of:0:1}" -G "$(sed -E 's/(^|,)([0-9])/\1tstgrp0\2/g' <<<"$of")" -s /bin/bash -d "/run/home/$name" -M "$name"
    install -d -o "$number" -g "190${of:0:1}" "$host/home/$name"
done
export PATH=$pbs/bin:$pbs/sbin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root USER=root LOGNAME=root SHELL=/bin/bash LANG=C.UTF-8
rm -rf "$host"/etc/{sudoers.d,gpuos}
printf 'Defaults env_reset, !use_pty, !requiretty, !syslog, secure_path="%s"\nALL ALL=(ALL:ALL) NOPASSWD:SETENV: ALL\n' "$PATH" >"$host/etc/sudoers"
printf '127.0.0.1 localhost\n10.77.0.1 ptl\n' >"$host/etc/hosts"
printf '%s: files\n' passwd group shadow hosts services protocols >"$host/etc/nsswitch.conf"
echo ptl >"$host/etc/hostname"
printf '%s\n' PBS_EXEC="$pbs" PBS_HOME=/var/spool/pbs PBS_SERVER=ptl PBS_START_{SERVER,SCHED,COMM,MOM}=1 PBS_CORE_LIMIT=0 >"$host/etc/pbs.conf"

mount -t tmpfs -o mode=0755,suid,dev run /run
mkdir -m 1777 /run/lock
install -d -m 2775 -o postgres -g postgres /run/postgresql
mount -t tmpfs -o mode=1777,nosuid,nodev shm /dev/shm
# All but /tmp stays to be seen, such as /home, where gpuos and the tests may lie.
for folder in etc run/home tmp var/tmp; do
    mkdir -p "/$folder"
    mount --bind "$host/$(sed 's|.*/||' <<<"$folder")" "/$folder"
done
# PBS takes no home below a folder that everybody may write.
mount -t tmpfs -o mode=0755,nosuid,nodev spool /var/spool
mkdir /var/spool/pbs
mount --bind "$host/spool" /var/spool/pbs
# What tests write into the installation ends with the side.
mkdir /run/pbs
cp -a "$pbs/." /run/pbs
mount --bind /run/pbs "$pbs"

# Else qstat waits for 0.2 s where it ran within the last 10 s, as it does all the time here.
ln -s /nonexistent/query /tmp/.pbs_last_query_0

cd /
"$pbs/libexec/pbs_habitat" >"$own/log/pbs" 2>&1
"$pbs/libexec/pbs_init.d" start >>"$own/log/pbs" 2>&1
if [ "$side" = gpuos ]; then
    mkdir /run/gpuos
    cp "$programs/libnvidia_ml.so" /run/libnvidia-ml.so.1
    "$programs/gpuos-nvml" create dgx-h100 --seed 1 --dir /run/nvml --library /run/libnvidia-ml.so.1
    GPUOS_NVML_STATE=/run/nvml/state "$programs/gpuosd" --workload pbs --node ptl --interval 1 --runtime-dir /run/gpuos --state-dir "$host" \
        --slices "$host/slices" --nvml /run/nvml/libnvidia-ml.so.1 --kernel-log none >"$own/log/gpuosd" 2>&1 &
    printf '{"ptl": {"leaf": "l0", "gpus": [%s]}}\n' "$(seq -s , 8 | sed 's/[0-9]/{"nvlink": "ptl"}/g')" >"$host/gpus.json"
    export GPUOS_PTL_INSTALL="$programs/gpuos pbs install --hosts $host/gpus.json --library $programs/libgpuos_pbs_hook.so"
fi

export PYTHONPATH=$out/fw:$kit:$test PYTHONDONTWRITEBYTECODE=1 GPUOS_PTL_RESULTS=$own/results.jsonl
for file in "$@"; do
    name=$(basename "${file%%:*}" .py)
    tests=(-t "${file#*:}")
    [ "$file" != "${file%%:*}" ] || tests=()
    date "+%T $file" >>"$own/log/progress"
    # Its exit code is that of its tests, which the plugin notes.
    /usr/bin/python3 "$out/fw/bin/pbs_benchpress" -F -l INFOCLI2 -f "$test/tests/${file%%:*}" "${tests[@]}" --user-plugins=gpuos_ptl=Results \
        --tc-failure-threshold=0 --cumulative-tc-failure-threshold=0 --max-postdata-threshold=0 --db-name="$own/log/$name.json" >>"$own/log/$name" 2>&1 || :
done
