#!/bin/sh
# Boots an image with a payload. Usage: tests/vm/boot.sh ROOT-FOLDER ARCH PAYLOAD-IMAGE CONSOLE
# What the machine tells comes on standard output; CONSOLE is a file for its serial line, or `-` for this terminal. Nothing is
# written to the images. NEXT, if set, is the folder of a third disk: the root file system that the machine upgrades to.
set -eu
folder=$1 arch=$2 payload=$3 console=$4
case $arch in
amd64) machine='qemu-system-x86_64 -machine q35 -cpu max,-cx16' tty=ttyS0 ;;
arm64) machine='qemu-system-aarch64 -machine virt -cpu max,pauth-impdef=on' tty=ttyAMA0 ;;
esac
if [ "$console" = - ]; then
    serial='-serial mon:stdio -chardev null,id=told'
else
    serial="-serial file:$console -monitor none -chardev file,id=told,path=/dev/stdout"
fi
next=${NEXT:+-drive file=$NEXT/root.img,format=raw,if=none,id=next,snapshot=on -device virtio-blk-pci,drive=next}
# The root file system alone is on NVMe: the kernel finds the disks of one kind in any order. `-nic none`: it reaches nobody.
# shellcheck disable=SC2086 # Words of options.
exec $machine -accel tcg,thread=multi,tb-size=512 -smp 4,sockets=2,cores=2 -m 1536 -nodefaults -display none -nic none $serial \
    -kernel "$folder/vmlinuz" -append "root=/dev/nvme0n1 rw console=$tty quiet systemd.show_status=0 systemd.mask=serial-getty@$tty.service" \
    -drive "file=$folder/root.img,format=raw,if=none,id=root,snapshot=on" -device nvme,drive=root,serial=root \
    -drive "file=$payload,format=raw,if=none,id=payload,readonly=on" -device virtio-blk-pci,drive=payload \
    $next \
    -device virtio-serial-pci -device virtserialport,nr=1,chardev=told
