# gpuosd by its own unit: what it may do, and who starts it again.

exposure() {
    words=$(systemd-analyze security --no-pager gpuosd.service | tail -n 1)
    figure=$(printf '%s' "$words" | sed -n 's/.*: \([0-9.]*\) .*/\1/p')
    tell "# systemd-analyze security: $figure of 10"
    [ "$(printf '%s' "$figure" | tr -d .)" -le 45 ] || { echo "exposure is $figure, above 4.5" && return 1; }
}
holds 'exposure by systemd-analyze security is 4.5 or less' exposure

verify() { systemd-analyze verify --man=no /usr/lib/systemd/system/gpuosd.service; }
holds 'systemd-analyze verify has nothing to say' verify

main_pid() { systemctl show -p MainPID --value gpuosd; }
anew() { now=$(main_pid) && [ "$now" != 0 ] && [ "$now" != "$1" ] && gpuos health >/dev/null; }

killed() {
    job=$(submit --gres=gpu:1 --gpuos-mig=1g.10gb --gpuos-power=300W) && runs "$job" && until_ 40 has_instance || return 1
    before=$(main_pid)
    kill -9 "$before"
    until_ 60 anew "$before" && is_state "$job" RUNNING && same "$(instances)" 1 instances && ends "$job" && until_ 30 no_instance
}
has_instance() { same "$(instances)" 1; }
no_instance() { same "$(instances)" 0; }
holds 'killed, it is back, and a job keeps its slice' killed

watchdog() {
    mkdir -p /run/systemd/system/gpuosd.service.d
    printf '[Service]\nWatchdogSec=8\n' >/run/systemd/system/gpuosd.service.d/quick.conf
    systemctl daemon-reload && systemctl restart gpuosd && until_ 30 gpuos health || return 1
    before=$(main_pid)
    # More than two of its periods: one that works is left alone.
    sleep 20
    same "$(main_pid)" "$before" 'the process after 20 s' || return 1
    kill -STOP "$before"
    until_ 60 anew "$before" || return 1
    rm -r /run/systemd/system/gpuosd.service.d && systemctl daemon-reload && systemctl restart gpuosd && until_ 30 gpuos health
}
holds 'one that hangs is ended by the watchdog, and started again' watchdog

fences() {
    pid=$(main_pid)
    for file in /etc/gpuos-touched /usr/gpuos-touched /home/gpuos-touched /boot/gpuos-touched; do
        if nsenter -t "$pid" -m -- touch "$file" 2>/dev/null; then echo "it may write $file" && return 1; fi
    done
    same "$(grep -c '^NoNewPrivs:.1' "/proc/$pid/status")" 1 NoNewPrivs
    same "$(awk '/^Seccomp:/ { print $2 }' "/proc/$pid/status")" 2 'seccomp filter'
}
holds 'it may write nowhere but in its own folders' fences

cheap() {
    memory=$(systemctl show -p MemoryCurrent --value gpuosd)
    tell "# memory of the unit: $((memory / 1048576)) MiB"
    [ "$memory" -lt 52428800 ] || { echo "$memory bytes" && return 1; }
}
holds 'it takes less than 50 MiB' cheap

ordered() { has "$(systemctl show -p Before --value gpuosd)" slurmd.service && has "$(systemctl show -p After --value slurmd)" gpuosd.service; }
holds 'it starts before slurmd' ordered
