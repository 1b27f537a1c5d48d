#!/bin/sh
# Real machines for the tests: Debian with systemd and control groups v2, emulated by qemu. `make vm-test` and `make arm-test`.
# Usage: tests/vm/vm.sh test SUITE[/ARCH] [PART...]     boots, runs the parts (all without one), says what held
#        tests/vm/vm.sh sh SUITE[/ARCH]                 a root shell in such a machine; it ends with `poweroff`
#        tests/vm/vm.sh parts                           the parts, with what each is about
# RELEASE is the folder with what cargo built, OUT where results are left; FROM is one with an older build, and NEXT a newer suite, that the
# part `upgrade` goes from and to. Exit code: 0 all held, or skipped because this machine has no
# qemu; 1 something did not hold; 2 wrong usage or nothing could be started.
set -eu
cd "$(dirname "$0")/../.."
here=tests/vm
out=${OUT:-target/vm}
limit=${LIMIT:-1500}

usage() {
    sed -n '3,5s/^# //p' "$here/vm.sh" >&2
    exit 2
}
parts() { sed -n 's/^[0-9]* *\([a-z-]*\) .*/\1/p' "$here/parts"; }

case ${1:-} in
parts) exec cat "$here/parts" ;;
test | sh) [ $# -ge 2 ] || usage ;;
*) usage ;;
esac
verb=$1 suite=${2%/*} arch=amd64
case $2 in */*) arch=${2#*/} ;; esac
shift 2
case $arch in
amd64) qemu=qemu-system-x86_64 package=qemu-system-x86 ;;
arm64) qemu=qemu-system-aarch64 package=qemu-system-arm ;;
*) echo "tests/vm/vm.sh: no machine of architecture '$arch': give amd64 or arm64" >&2 && exit 2 ;;
esac
wanted=${*:-$(parts)}
for part in $wanted; do
    [ -e "$here/guest/parts/$part.sh" ] || {
        echo "tests/vm/vm.sh: no part '$part': give some of $(parts | tr '\n' ' ')" >&2
        exit 2
    }
done
for need in "$qemu $package" 'mke2fs e2fsprogs' 'debootstrap debootstrap'; do
    command -v "${need% *}" >/dev/null 2>&1 || [ -x "/usr/sbin/${need% *}" ] || {
        echo "skipped: virtual machines need ${need% *}, which this machine lacks: apt-get install ${need#* }"
        exit 0
    }
done

root=$("$here/root.sh" "$suite" "$arch") || exit 2
[ -z "${NEXT:-}" ] || NEXT=$("$here/root.sh" "$NEXT" "$arch") || exit 2
export NEXT="${NEXT:-}"
mkdir -p "$out"
run=$(mktemp -d "$out/$suite-$arch.XXXXXX")
machine=
trap '[ -z "$machine" ] || kill "$machine" 2>/dev/null || :; rm -rf "$run"' EXIT
trap 'exit 1' HUP INT TERM
release=${RELEASE:-target/release}
"$here/payload.sh" "$run" "$release" "PARTS='$(echo $wanted)' SHELL_ON_CONSOLE=$([ "$verb" = test ] || echo yes)" || exit 2

if [ "$verb" = sh ]; then
    echo 'A root shell comes in half a minute; poweroff ends the machine, Ctrl-a x ends it at once.'
    "$here/boot.sh" "$root" "$arch" "$run/payload.img" -
    exit
fi

echo "$suite/$arch: $(tr '\n' ' ' <"$root/packages")"
begun=$(date +%s)
mkfifo "$run/told"
timeout --kill-after=5 "$limit" "$here/boot.sh" "$root" "$arch" "$run/payload.img" "$run/console" >"$run/told" </dev/null &
machine=$!
part=boot ok=0 bad=0 skipped=0 ended=
results=$run/results.tsv
touch "$results" "$run/heard"
while IFS= read -r line; do
    line=$(printf '%s' "$line" | tr -d '\r')
    case $line in
    'part '*) part=${line#part } ;;
    'ok '*) ok=$((ok + 1)) ;;
    'not ok '*) bad=$((bad + 1)) ;;
    'skip '*) skipped=$((skipped + 1)) ;;
    'done') ended=yes && break ;;
    esac
    case $line in 'ok '* | 'not ok '* | 'skip '*) printf '%s\t%s\n' "$part" "$line" >>"$results" ;; esac
    printf '%s\n' "$line" >>"$run/heard"
    printf '%4s s  %s\n' "$(($(date +%s) - begun))" "$line"
done <"$run/told"
wait "$machine" || [ -n "$ended" ] || echo "the machine ended early or was ended after $limit s"
# One row for each machine and part, the newest; docs/reference/machines.csv is made of it.
table=$out/machines.csv
[ -e "$table" ] || cp docs/reference/machines.csv "$table" 2>/dev/null || echo 'date,slurm,architecture,suite,groups,systemd,linux,part,about,held,failed,skipped' >"$table"
system=$(sed -n 's/^# slurm-wlm \([^,]*\), systemd \([^,]*\), Linux \([^ ]*\) .*, control groups \(.*\)$/\1,\4,\2,\3/p' "$run/heard")
for part in $([ -z "$ended" ] || echo "$wanted"); do
    about=$(sed -n "s/^[0-9]* *$part  *//p" "$here/parts")
    row=$(awk -F '\t' -v part="$part" -v about="$about" -v day="$(date +%F)" -v seen="$system" -v arch="$arch" -v suite="$suite" '
        $1 == part { count[substr($2, 1, 2)]++ }
        END {
            split(seen, s, ",")
            printf "%s,%s,%s,%s,%s,%s,%s,%s,\"%s\",%d,%d,%d\n", day, s[1], arch, suite, s[2], s[3], s[4], part, about, count["ok"], count["no"], count["sk"]
        }' "$results")
    grep -v "^[^,]*,[^,]*,$arch,$suite,.*,$part,\"" "$table" >"$run/table"
    { cat "$run/table" && echo "$row"; } >"$table"
done
if [ -z "$ended" ] || [ "$bad" != 0 ]; then
    cp "$run/console" "$out/$suite-$arch.console" 2>/dev/null || :
    echo "the machine's console: $out/$suite-$arch.console"
    [ -n "$ended" ] || tail -n 15 "$run/console" 2>/dev/null || :
fi
echo "$suite/$arch: $ok held, $bad did not, $skipped skipped; $(($(date +%s) - begun)) s"
echo "$ok passed, $bad failed, $skipped skipped"
[ -n "$ended" ] && [ "$bad" = 0 ]
