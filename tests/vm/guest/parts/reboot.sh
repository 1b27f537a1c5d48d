# A node that is rebooted under its jobs.

job=$(submit --gres=gpu:2 --gpuos-mig=3g.40gb --requeue)
waiting=$(submit -p cloud --gres=gpu:2)
runs "$job"
drained() { has "$(scontrol show node n1 | grep Extra)" gpuos; }
holds 'a GPU is taken out of service before' sh -c 'gpuos drain n1:3 --reason "before the boot"'
until_ 30 drained
echo "$job $waiting" >"$STATE/jobs"
{ echo reboot-again && cat "$STATE/parts"; } >"$STATE/next" && mv "$STATE/next" "$STATE/parts"
tell '# reboots now'
sync
systemctl reboot
sleep 600
