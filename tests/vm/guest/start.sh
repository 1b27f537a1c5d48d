#!/bin/sh
# What a virtual machine does when it is up: on the first boot it installs what the second disk has, as an administrator
# would; then it runs the parts that are still to be run, and ends itself.
set -u
. /media/guest/lib.sh
. /media/parameters

groups_() { case $(stat -fc %T /sys/fs/cgroup) in cgroup2fs) echo v2 ;; *) echo v1 ;; esac; }

if [ "${SHELL_ON_CONSOLE:-}" = yes ]; then
    # Not serial-getty@: it waits for udev, which such a machine does without.
    console=$(sed 's/.*console=\([a-zA-Z0-9]*\).*/\1/' /proc/cmdline)
    setsid agetty --autologin root --keep-baud 115200 "$console" xterm &
fi
tell '# is up'

if [ ! -e "$STATE/installed" ]; then
    mkdir -p "$STATE"
    multiarch=$(basename "$(dirname /usr/lib/*/slurm-wlm)")
    cp -a /media/root/. /
    cp -a /media/guest/etc /
    sed -i "s/@MULTIARCH@/$multiarch/" /etc/slurm/slurm.conf
    install /media/guest/nvidia-cuda-mps-control /usr/bin/
    install /media/guest/gpus.sh /usr/local/sbin/simulated-gpus
    install -d -o slurm -g slurm /var/lib/slurm/slurmctld /var/log/slurm /run/slurmctld
    install -d /var/lib/slurm/slurmd
    # Nodes without a machine have addresses that nothing leads to: Slurm 22.05 tries a name that nobody resolves eleven times.
    for number in $(seq 16); do echo "10.0.1.$number c$number"; done >>/etc/hosts
    for name in alice mallory; do id "$name" >/dev/null 2>&1 || useradd -m "$name"; done
    systemd-tmpfiles --create
    systemctl daemon-reload
    for unit in address simulated-gpus gpuosd slurmctld slurmd; do systemctl enable "$unit.service"; done >/dev/null 2>&1
    ln -sf /var/lib/nvml/libnvidia-ml.so.1 "/usr/lib/$multiarch/libnvidia-ml.so.1"
    systemctl start address simulated-gpus munge slurmctld gpuosd slurmd
    echo "$PARTS" | tr ' ' '\n' >"$STATE/parts"
    touch "$STATE/installed"
    tell "# $(slurmctld -V), systemd $(systemctl --version | sed -n '1s/systemd \([0-9.]*\).*/\1/p'), Linux $(uname -r) $(uname -m), control groups $(groups_)"
else
    tell "# booted again"
fi

[ "${SHELL_ON_CONSOLE:-}" != yes ] || { wait && exit; }

while read -r part <"$STATE/parts" && [ -n "$part" ]; do
    # Out of the list before it runs: one that reboots the machine goes on in the next, `PART-again`.
    sed -i 1d "$STATE/parts"
    tell "part ${part%-again}"
    . "/media/guest/parts/$part.sh"
done
finish
