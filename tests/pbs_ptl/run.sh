#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs OpenPBS's own functional tests (PTL) twice, on an OpenPBS as it is and on the same with gpuos installed, and says which tests pass on one side alone.
#
#     run.sh PBS PTL PROGRAMS OUT [CLASS...]
#
# PBS       prefix of an installed OpenPBS; nothing is written there
# PTL       folder test/ of the source of the same release
# PROGRAMS  folder with gpuos, gpuosd, libgpuos_pbs_hook.so, gpuos-nvml and libnvidia_ml.so, as cargo builds them
# OUT       folder for what both sides write; neither it nor one of the others may be below /tmp or /run
# CLASS     of the list `files` beside this script: smoke, hooks, placement, arrays, preemption, reservations; without any, all
#
# Needs root and, on Debian, sudo, iproute2, postgresql, python3-nose, python3-bs4, python3-pexpect and python3-defusedxml. Each side is a host of its own in
# namespaces, with its own /etc, users, /tmp and home of PBS; all of it ends with this script. PTL takes hooks, resources and vnodes out of PBS before
# each test; on the side of gpuos they are installed again by `gpuos pbs install`. What passes on one side alone runs three times more on both, and the more
# frequent outcome counts. "hook gone at end" are tests that delete or disable gpuos's hook, which say little of it.
# GPUOS_PTL_LIMIT has the seconds for a test, 180 by default. OUT/SIDE/log has what PTL said, OUT/SIDE/host*/spool the homes of PBS.
#
# Exit code: 0 where no test passes on stock alone, 1 where one does, 2 where the tests cannot be run.
set -u
kit=$(dirname "$(readlink -f "$0")")
fail() { echo "pbs-ptl: $*" >&2; exit 2; }
[ $# -ge 4 ] || fail "give the prefix of PBS, the folder test/ of its source, the folder of gpuos's programs, and one for the output"
pbs=$(readlink -m "$1") test=$(readlink -m "$2") programs=$(readlink -m "$3") out=$(readlink -m "$4")
shift 4
[ "$(id -u)" = 0 ] || fail "namespaces and users need root: run it as root"
[ -x "$pbs/sbin/pbs_server" ] || fail "$pbs has no sbin/pbs_server: give the prefix of an installed OpenPBS"
[ -f "$test/fw/bin/pbs_benchpress" ] || fail "$test has no fw/bin/pbs_benchpress: give the folder test/ of OpenPBS's source"
for program in gpuos gpuosd gpuos-nvml libgpuos_pbs_hook.so libnvidia_ml.so; do
    [ -f "$programs/$program" ] || fail "$programs has no $program: build them, and give their folder"
done
for program in sudo unshare ip; do
    command -v $program >/dev/null || fail "there is no $program on this machine: apt-get install sudo util-linux iproute2"
done
/usr/bin/python3 -c 'import nose, bs4, pexpect, defusedxml' || fail "on Debian: apt-get install python3-nose python3-bs4 python3-pexpect python3-defusedxml"
mapfile -t files < <(awk -v wanted=" $* " '!/^#/ && NF && (wanted == "  " || index(wanted, " " $1 " ")) { print $2 }' "$kit/files")
[ ${#files[@]} -gt 0 ] || fail "no file is of the classes $*: see $kit/files"

[ ! -e "$out" ] || [ -e "$out/fw" ] || fail "$out is there and not of this script: give another folder"
rm -rf "$out"
mkdir -p "$out" && cp -a "$test/fw" "$out/fw" || fail "cannot copy PTL to $out"
sed "s/@PBS_VERSION@/$("$pbs/bin/qstat" --version | sed 's/.*= *//')/" "$test/fw/ptl/__init__.py.in" >"$out/fw/ptl/__init__.py"

sides=()
trap 'kill -KILL "${sides[@]}" 2>/dev/null; exit 2' INT TERM
both() { # test files
    sides=()
    for side in stock gpuos; do
        unshare --mount --net --uts --ipc --pid --fork --kill-child bash "$kit/side.sh" "$side" "$pbs" "$out" "$test" "$programs" "$@" \
            >>"$out/$side.out" 2>&1 </dev/null &
        sides+=($!)
    done
    wait "${sides[@]}"
}
both "${files[@]}"
for side in stock gpuos; do
    [ -s "$out/$side/results.jsonl" ] || fail "no test ran on the side $side: see $out/$side.out and $out/$side/log"
done
mapfile -t again < <(/usr/bin/python3 "$kit/compare.py" --again "$out" "$kit/files")
[ ${#again[@]} -eq 0 ] || both "${again[@]}" "${again[@]}" "${again[@]}"
/usr/bin/python3 "$kit/compare.py" "$out" "$kit/files"
