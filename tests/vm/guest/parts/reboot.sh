# A node that loses its power under its jobs, slurmctld with it. (At an orderly shutdown systemd ends the jobs, and Slurm counts them as failed.)

job=$(submit --gres=gpu:2 --gpuos-mig=3g.40gb --requeue)
waiting=$(submit -p cloud --gres=gpu:2)
runs "$job"
drained() { has "$(scontrol show node n1 | grep Extra)" gpuos; }
holds 'a GPU is taken out of service before' sh -c 'gpuos drain n1:3 --reason "before the boot"'
until_ 30 drained
echo "$job $waiting" >"$STATE/jobs"
{ echo reboot-again && cat "$STATE/parts"; } >"$STATE/next" && mv "$STATE/next" "$STATE/parts"
tell '# reboots now'
sleep 5
sync
systemctl reboot --force --force
sleep 600
