# Starts a private Grid Engine and tells it of gpuos. Runs on the first host, as root; arguments: hosts with GPUs.
set -eu
export SGE_ROOT=/var/lib/gridengine SGE_CELL=default SGE_ARCH=lx-amd64
work=$(mktemp -d -p /run)
as_admin() { setpriv --reuid=sgeadmin --regid=sgeadmin --clear-groups "$@"; }
as_admin sh /usr/share/gridengine/scripts/init_cluster $SGE_ROOT $SGE_CELL /var/spool/gridengine/spooldb sgeadmin
/usr/lib/gridengine/sge_qmaster
turns=600
until as_admin qconf -ss >/dev/null 2>&1 || [ "$(as_admin qconf -ss 2>&1 | grep -c 'no submit host')" = 1 ]; do
    turns=$((turns - 1))
    [ "$turns" -gt 0 ] || { as_admin qconf -ss; exit 1; }
    sleep 0.2
done
as_admin qconf -am root || :
for host in "$(hostname)" "$@"; do qconf -ah "$host" || :; qconf -as "$host"; done
{ echo 'group_name @allhosts'; echo "hostlist $*"; } >"$work/hosts"
for host in "$@"; do
    printf 'hostname %s\nload_scaling NONE\ncomplex_values NONE\nuser_lists NONE\nxuser_lists NONE\nprojects NONE\nxprojects NONE\nusage_scaling NONE\nreport_variables NONE\n' "$host" >"$work/host"
    qconf -Ae "$work/host"
done
qconf -Ahgrp "$work/hosts"
cat >"$work/pe" <<LINES
pe_name smp
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule \$pe_slots
control_slaves FALSE
job_is_first_task TRUE
urgency_slots min
accounting_summary FALSE
qsort_args NONE
LINES
qconf -Ap "$work/pe"
qconf -sq | sed -e 's/template/gpu.q/' -e 's/^hostlist .*/hostlist @allhosts/' -e 's/^pe_list .*/pe_list smp/' -e 's/^slots .*/slots 16/' \
    -e 's/^load_thresholds .*/load_thresholds NONE/' -e 's/^rerun .*/rerun TRUE/' -e 's,^tmpdir .*,tmpdir /mnt/tmp,' >"$work/queue"
qconf -Aq "$work/queue"
qconf -ssconf | sed -e 's/^schedule_interval .*/schedule_interval 0:0:1/' -e 's/^flush_submit_sec .*/flush_submit_sec 1/' \
    -e 's/^flush_finish_sec .*/flush_finish_sec 1/' >"$work/sched"
qconf -Msconf "$work/sched"
qconf -sconf | grep -v -e '^#' -e '^load_report_time ' >"$work/global"
echo 'load_report_time 00:00:01' >>"$work/global"
qconf -Mconf "$work/global"
# It may be run again.
for _ in once again; do sh /usr/share/gpuos/gridengine/setup.sh gpu.q /mnt/saves; done
