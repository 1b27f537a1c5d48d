#!/bin/sh
# Tells a Grid Engine of gpuos, by qconf, as one of its managers, and takes it out again. Safe to run again. docs/admin/gridengine.md says
# what each line is for.
#   setup.sh QUEUE CHECKPOINT_FOLDER [--keep-jsv]    programs save into a folder of their user there
#   setup.sh QUEUE --store [--keep-jsv]              gpuos_mover keeps checkpoints
#   setup.sh --remove                                all is as it was before, on each queue
# What was there before is noted in $GPUOS_GRIDENGINE_STATE, by default the folder common/gpuos of the cell.
set -eu
own=/usr/share/gpuos/gridengine
say() { printf 'setup.sh: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}
usage() {
    sed -n 's/^#   setup.sh/usage: setup.sh/p' "$0" >&2
    exit 2
}
# One line for each entry, however long it is.
export SGE_SINGLE_LINE=1
if [ -z "${SGE_ROOT:-}" ] && [ -r /etc/default/gridengine ]; then . /etc/default/gridengine; fi
state=${GPUOS_GRIDENGINE_STATE:-${SGE_ROOT:-/var/lib/gridengine}/${SGE_CELL:-default}/common/gpuos}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# All that qalter changes where no verifier is set: with one, Grid Engine takes what is named here alone.
changes=a,ac,ar,A,b,binding,c_interval,c_occasion,ckpt,CMDNAME,cwd,dl,e,h,hold_jid,hold_jid_ad,i,j,js,l_hard,l_soft,m,M,masterl,masterq,N,notify,now,o,p,P,pe_max,pe_min,pe_name,q_hard,q_soft,R,r,S,shell,t,tc,v,V,w
jsv=script:$own/jsv

is_none() { [ -z "$1" ] || [ "$1" = none ] || [ "$1" = NONE ]; }
# value FILE NAME: what an entry says; nothing where it is missing.
value() { sed -n "s/^$2[[:blank:]][[:blank:]]*//p" "$1"; }
# put FILE NAME VALUE: the entry in its place, or a new one at the end.
put() {
    NAME=$2 VALUE=$3 awk '
        $1 == ENVIRON["NAME"] { print ENVIRON["NAME"] " " ENVIRON["VALUE"]; done = 1; next }
        NF { print }
        END { if (!done) print ENVIRON["NAME"] " " ENVIRON["VALUE"] }' "$1" >"$work/put"
    cat "$work/put" >"$1"
}
drop() {
    NAME=$2 awk '$1 != ENVIRON["NAME"] && NF { print }' "$1" >"$work/put"
    cat "$work/put" >"$1"
}
# The cluster's configuration, without the line that names it.
conf() { qconf -sconf | grep -v '^#'; }
set_conf() { qconf -Mconf "$work/global"; }

# called QUEUE_FILE: the site's own starter, which gpuos's calls; nothing where it has none.
called() { value "$1" prolog | sed -n 's/.* --starter \([^],[:blank:]]*\).*/\1/p'; }

# each HOW VALUE: an entry of a queue, `DEFAULT,[HOST=VALUE],...`, with each value as HOW makes it.
each() {
    HOW=$1 VALUE=$2 KIND=$3 OWN="root@$own/$3 \$job_id \$ja_task_id" SITE=$4 STARTER=$5 awk '
        function ours(value) { return index(value, ENVIRON["OWN"]) == 1 }
        function none(value) { return value == "" || value == "none" || value == "NONE" }
        function made(value,   more) {
            if (ENVIRON["HOW"] == "wrap") {
                more = none(ENVIRON["STARTER"]) ? "" : " --starter " ENVIRON["STARTER"]
                if (ours(value)) {
                    # It may have been set up with another starter.
                    value = substr(value, length(ENVIRON["OWN"]) + 1)
                    sub(/^ \$job_owner( --starter [^ ]*)?/, "", value)
                    more = more value
                } else if (!none(value)) more = more " --queue " value
                else if (!none(ENVIRON["SITE"])) more = more " --conf " ENVIRON["SITE"]
                return ENVIRON["OWN"] (more == "" ? "" : " $job_owner" more)
            }
            if (!ours(value)) return value
            return match(value, / --queue /) ? substr(value, RSTART + RLENGTH) : "NONE"
        }
        BEGIN {
            rest = ENVIRON["VALUE"]
            while ((at = index(rest, ",[")) > 0 || rest != "") {
                part = at > 0 ? substr(rest, 1, at - 1) : rest
                rest = at > 0 ? substr(rest, at + 2) : ""
                if (!first++) { printf "%s", made(part); continue }
                sub(/\]$/, "", part)
                eq = index(part, "=")
                printf ",[%s=%s]", substr(part, 1, eq - 1), made(substr(part, eq + 1))
            }
        }'
}

remove() {
    failed=0
    try() { "$@" || failed=1; }
    ! is_none "$(ls "$state" 2>/dev/null)" || say "there is no note in $state of what was here before: what is gpuos's counts as new"
    for queue in $(qconf -sql); do
        qconf -sq "$queue" >"$work/queue"
        cp "$work/queue" "$work/before"
        starter=$(called "$work/queue")
        for kind in prolog epilog; do
            put "$work/queue" $kind "$(each unwrap "$(value "$work/queue" $kind)" $kind '' '')"
        done
        if [ "$(value "$work/queue" starter_method)" = "$own/starter" ]; then
            put "$work/queue" starter_method "${starter:-NONE}"
        fi
        before=$(value "$work/before" prolog)$(value "$work/before" epilog)$(value "$work/before" starter_method)
        after=$(value "$work/queue" prolog)$(value "$work/queue" epilog)$(value "$work/queue" starter_method)
        [ "$before" = "$after" ] || try qconf -Mq "$work/queue"
        case ",$(value "$work/queue" ckpt_list | tr ' ' ','),$(cat "$state/queue.$queue.ckpt" 2>/dev/null)" in
        *,gpuos,*,kept | *,kept) ;;
        *,gpuos,*) try qconf -dattr queue ckpt_list gpuos "$queue" ;;
        esac
    done
    conf >"$work/global"
    if [ "$(value "$work/global" jsv_url)" = "$jsv" ]; then
        for name in jsv_url jsv_allowed_mod; do
            if [ ! -e "$state/conf" ]; then
                case $name in
                jsv_url) put "$work/global" $name none ;;
                *) [ "$(value "$work/global" $name)" != "$changes" ] || put "$work/global" $name ac,h,i,e,o,j,M,N,p,w ;;
                esac
            elif grep -q "^$name[[:blank:]]" "$state/conf"; then
                # What the site has written since stays.
                if [ $name = jsv_url ] || [ "$(value "$work/global" $name)" = "$changes" ]; then
                    put "$work/global" $name "$(value "$state/conf" $name)"
                fi
            else
                drop "$work/global" $name
            fi
        done
    fi
    sensors=$(value "$work/global" load_sensor)
    case ",$sensors," in
    *",$own/sensor,"*)
        left=$(printf '%s' ",$sensors," | sed -e "s;,$own/sensor,;,;" -e 's/^,//' -e 's/,$//')
        if [ -n "$left" ]; then
            put "$work/global" load_sensor "$left"
        elif [ ! -e "$state/conf" ] || grep -q '^load_sensor[[:blank:]]' "$state/conf"; then
            before=$(value "$state/conf" load_sensor 2>/dev/null || :)
            if is_none "$before"; then put "$work/global" load_sensor "${before:-none}"; else put "$work/global" load_sensor none; fi
        else
            drop "$work/global" load_sensor
        fi
        ;;
    esac
    conf | cmp -s - "$work/global" || try set_conf
    # What is done is not done again, by whatever is set up after it.
    [ $failed != 0 ] || rm -f "$state/conf" "$state"/queue.*.ckpt
    if [ -e "$state/ckpt" ]; then
        try qconf -Mckpt "$state/ckpt"
        [ $failed != 0 ] || rm -f "$state/ckpt"
    elif qconf -sckpt gpuos >/dev/null 2>&1; then
        try qconf -dckpt gpuos
    fi
    # Of complexes that are gpuos's alone nobody else can have counts.
    for name in $(cat "$state/complexes" 2>/dev/null); do
        for host in global $(qconf -sel); do
            qconf -se "$host" 2>/dev/null | sed -n 's/^complex_values[[:blank:]]*//p' | tr ',' '\n' | grep -q "^ *$name=" || continue
            try qconf -dattr exechost complex_values "$name" "$host"
        done
    done
    if [ -s "$state/complexes" ]; then
        # Hosts have reported some of them, and sge_qmaster forgets that some reports later.
        turns=${GPUOS_GRIDENGINE_WAIT:-120}
        while :; do
            qconf -sc | awk 'FNR == NR { gone[$1] = 1; next } !($1 in gone)' "$state/complexes" - >"$work/complexes"
            qconf -Mc "$work/complexes" >"$work/said" 2>&1 || :
            grep -q 'still referenced in host' "$work/said" && [ "$turns" -gt 0 ] || break
            turns=$((turns - 1))
            sleep 1
        done
        cat "$work/said"
        for name in $(cat "$state/complexes"); do
            if qconf -sc | grep -q "^$name[[:blank:]]"; then failed=1; fi
        done
    fi
    [ $failed = 0 ] || fail "not all could be taken out: mend what qconf says above (jobs that have the complexes or -ckpt gpuos have to end first, and a sge_execd whose host still reports them has to be started again), and run setup.sh --remove again"
    rm -rf "$state"
    echo 'gpuos is out of this Grid Engine.'
}

if [ $# -eq 1 ] && [ "$1" = --remove ]; then
    remove
    exit
fi
case $# in
2) keep_jsv= ;;
3) [ "$3" = --keep-jsv ] || usage && keep_jsv=1 ;;
*) usage ;;
esac
queue=$1 saves=$2 when=xsm
case $queue in -*) usage ;; esac
# gpuos_mover has programs save at their intervals; r: jobs are started again when their host is lost, or by qmod -rj.
case $saves in
--store) saves=none when=xsr ;;
/*) ;;
*) fail "$saves: the folder of checkpoints is a whole path that all hosts have, as /scratch/saves; or write --store" ;;
esac

# Nothing is changed before all of it is known to go.
conf >"$work/global"
qconf -sq "$queue" >"$work/queue" || fail "there is no queue $queue; qconf -sql lists those that there are"
qconf -sc >"$work/complexes"
url=$(value "$work/global" jsv_url)
if ! is_none "$url" && [ "$url" != "$jsv" ] && [ -z "$keep_jsv" ]; then
    fail "jsv_url is $url, and Grid Engine has one verifier alone. Nothing was changed. Have it do what docs/admin/gridengine.md (The site's own scripts) says, and write --keep-jsv, which leaves jsv_url and jsv_allowed_mod as they are"
fi
starter=$(value "$work/queue" starter_method)
case $starter in
"$own/starter") starter=$(called "$work/queue") ;;
*[],[:blank:]]*)
    [ "$saves" = none ] || fail "starter_method of $queue is '$starter': gpuos can call one for all hosts, whose path has no blanks, commas or brackets. Nothing was changed. Write such a one, or have gpuos_mover keep checkpoints (--store), which needs no starter"
    ;;
esac
for host in $(qconf -sconfl 2>/dev/null | grep -v ' '); do
    for kind in prolog epilog; do
        theirs=$(qconf -sconf "$host" | grep -v '^#' | sed -n "s/^$kind[[:blank:]][[:blank:]]*//p")
        mine=$(value "$work/queue" $kind)
        case $mine in NONE | none | "$own"* | "root@$own"*) ;; *) continue ;; esac
        is_none "$theirs" || fail "host $host has a $kind of its own (qconf -sconf $host), and one of a queue would stand in for it. Nothing was changed. Write it into the queue: qconf -mattr queue $kind '$mine,[$host=$theirs]' $queue"
    done
done

if [ ! -e "$state/conf" ]; then
    mkdir -p "$state" && [ -w "$state" ] || fail "cannot write $state, where it is noted what was here before. Nothing was changed. Run this as root or as the account of Grid Engine, or set GPUOS_GRIDENGINE_STATE to another folder, now and for --remove"
    cp "$work/global" "$state/conf.new"
    # Of a setup.sh that kept no note.
    [ "$url" != "$jsv" ] || put "$state/conf.new" jsv_url none
    if qconf -sckpt gpuos >"$work/ckpt.before" 2>/dev/null && ! grep -q "$own/ckpt" "$work/ckpt.before"; then
        cp "$work/ckpt.before" "$state/ckpt"
    fi
    mv "$state/conf.new" "$state/conf"
fi
if [ ! -e "$state/queue.$queue.ckpt" ]; then
    case " $(value "$work/queue" ckpt_list | tr ',' ' ') " in
    *' gpuos '*) if [ -e "$state/ckpt" ]; then echo kept; else echo added; fi ;;
    *) echo added ;;
    esac >"$state/queue.$queue.ckpt"
fi

while read -r line; do
    [ -n "$line" ] || continue
    grep -q "^${line%% *}[[:blank:]]" "$work/complexes" || {
        echo "$line" >>"$work/complexes"
        echo "${line%% *}" >>"$state/complexes"
    }
done <<LINES
gpu gpu INT <= YES JOB 0 0
gpuos_topology gpuos_topology RESTRING == YES NO NONE 0
gpuos_topo gpuos_topo RESTRING == YES NO NONE 0
gpuos_free gpuos_free INT <= YES NO 0 0
gpuos_nvlink gpuos_nvlink INT <= YES NO 0 0
$([ "$saves" != none ] || echo gpuos_checkpoint gpuos_checkpoint RESTRING == YES NO NONE 0)
LINES
qconf -Mc "$work/complexes"

sensors=$(value "$work/global" load_sensor)
case ",$sensors," in
*",$own/sensor,"*) ;;
*) if is_none "$sensors"; then put "$work/global" load_sensor "$own/sensor"; else put "$work/global" load_sensor "$sensors,$own/sensor"; fi ;;
esac
if is_none "$url"; then
    put "$work/global" jsv_url "$jsv"
    put "$work/global" jsv_allowed_mod "$changes"
elif [ "$url" = "$jsv" ] && [ "$(value "$work/global" jsv_allowed_mod)" = "$(value "$state/conf" jsv_allowed_mod)" ]; then
    put "$work/global" jsv_allowed_mod "$changes"
fi
set_conf

cat >"$work/ckpt" <<LINES
ckpt_name gpuos
interface APPLICATION-LEVEL
ckpt_command $own/ckpt save \$ckpt_dir \$job_id \$ja_task_id
migr_command $own/ckpt migrate \$ckpt_dir \$job_id \$ja_task_id \$job_pid
restart_command none
clean_command $own/ckpt clean \$ckpt_dir \$job_id \$ja_task_id
ckpt_dir $saves
signal none
when $when
LINES
if qconf -sckpt gpuos >/dev/null 2>&1; then qconf -Mckpt "$work/ckpt"; else qconf -Ackpt "$work/ckpt"; fi

# With --store the site's own starter is left alone: no folder is made.
if is_none "$starter" || [ "$saves" != none ]; then put "$work/queue" starter_method "$own/starter"; fi
[ "$(value "$work/queue" starter_method)" = "$own/starter" ] || starter=
for kind in prolog epilog; do
    with=
    [ $kind != prolog ] || with=$starter
    made=$(each wrap "$(value "$work/queue" $kind)" $kind "$(value "$work/global" $kind)" "$with")
    put "$work/queue" $kind "$made"
done
qconf -Mq "$work/queue"
qconf -aattr queue ckpt_list gpuos "$queue"
for host in $(qconf -sconfl 2>/dev/null | grep -v ' '); do
    theirs=$(qconf -sconf "$host" | sed -n 's/^load_sensor[[:blank:]][[:blank:]]*//p')
    case ",$theirs," in
    ,, | *",$own/sensor,"*) ;;
    *) say "host $host has load sensors of its own, so it does not report its GPUs: add $own/sensor there (qconf -mconf $host)" ;;
    esac
done
echo "Now say for each host how many GPUs it has: qconf -aattr exechost complex_values gpu=8 HOST"
