# gpuos-checkpoint.sh: checkpoints of a job for programs in sh and bash. SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh disable=SC2034
#
#     . /usr/share/gpuos/gpuos-checkpoint.sh
#     gpuos_checkpoint_start || exit 1
#     [ -z "$gpuos_checkpoint_from" ] || state=$(cat "$gpuos_checkpoint_from/state")
#     while work; do
#         if gpuos_checkpoint_wanted; then
#             number=$gpuos_checkpoint_number
#             if gpuos_checkpoint_folder "$number"; then
#                 echo "$state" >"$gpuos_checkpoint_into/state"
#                 gpuos_checkpoint_ready "$number" || :
#                 [ "$gpuos_checkpoint_reason" != end ] || ! gpuos_checkpoint_wait "$number" || exit 0
#             fi
#         fi
#     done
#
# What was saved is stored while the script goes on, which may fail. The next gpuos_checkpoint_wanted, gpuos_checkpoint_ask or gpuos_checkpoint_ready finds that:
# rank 0 says it once on standard error, and gpuos_checkpoint_lost is the number until a newer one exists, else empty.
#
# In a job without checkpoints gpuos_checkpoint_start succeeds and none is ever wanted. Works under `set -eu`, and needs
# coreutils alone; with flock of util-linux a start that has ended is told from one that runs, by a file that stays open as one of the descriptors 9 to 3,
# which programs that are started inherit. docs/user/checkpoint-files.md has the protocol behind it. Names that begin with _gpuos_ are this file's own.

gpuos_checkpoint_restored='' # the checkpoint that the program goes on from
gpuos_checkpoint_from=''     # the folder with its files
gpuos_checkpoint_ranks=''    # how many ranks have made it
gpuos_checkpoint_number=''   # the checkpoint that is wanted
gpuos_checkpoint_reason=''   # why: interval, asked, end
gpuos_checkpoint_into=''     # the folder for its files
gpuos_checkpoint_why=''      # why the last function failed
gpuos_checkpoint_lost=''     # the checkpoint that was saved last, if it came to nothing
gpuos_checkpoint_lost_why='' # why it did
_gpuos_joined='' _gpuos_told='' _gpuos_done=0 _gpuos_rank=0 _gpuos_size=1 _gpuos_any='' _gpuos_held='' _gpuos_open=''

# A decimal number without sign and leading zeros, of at most ten digits?
_gpuos_number() {
    case ${1:-} in
    '' | *[!0-9]* | 0?* | ???????????*) return 1 ;;
    esac
}

# The first line of a file, as its first word and the rest.
_gpuos_read() {
    _gpuos_word='' _gpuos_rest=''
    [ -f "$1" ] || return 1
    { read -r _gpuos_word _gpuos_rest <"$1"; } 2>/dev/null || [ -n "$_gpuos_word" ]
}

_gpuos_fails() {
    gpuos_checkpoint_why=$1
    return 1
}

# Rank and size from the launcher's environment, as other languages' libraries of gpuos have them.
_gpuos_found() {
    _gpuos_number "$1" && _gpuos_number "$2" || return 1
    _gpuos_rank=$1 _gpuos_size=$2
}
_gpuos_launcher() {
    _gpuos_rank=0 _gpuos_size=1
    if [ -n "${TORCHELASTIC_RUN_ID+set}" ] && _gpuos_found "${RANK:-}" "${WORLD_SIZE:-}"; then return; fi
    if _gpuos_found "${OMPI_COMM_WORLD_RANK:-}" "${OMPI_COMM_WORLD_SIZE:-}"; then return; fi
    if _gpuos_found "${PMI_RANK:-}" "${PMI_SIZE:-}"; then return; fi
    if _gpuos_found "${RANK:-}" "${WORLD_SIZE:-}"; then return; fi
    # From 4294967280 on it is the batch script or the like.
    if _gpuos_number "${SLURM_STEP_ID:-}" && [ "$SLURM_STEP_ID" -lt 4294967280 ]; then
        _gpuos_found "${SLURM_PROCID:-}" "${SLURM_STEP_NUM_TASKS:-}" || :
    fi
}

# One pause of a wait: sleeps, and says every 60 s what is waited for. 1: the folder of the job is gone, or the limit in seconds is over.
_gpuos_pause() {
    [ -d "$GPUOS_CHECKPOINT_DIR" ] || { _gpuos_fails "$GPUOS_CHECKPOINT_DIR is gone"; return; }
    if [ -n "$2" ] && [ "$_gpuos_pauses" -ge "$(($2 * 5))" ]; then
        _gpuos_fails "$1 did not come within $2 s"
        return
    fi
    sleep 0.2
    _gpuos_pauses=$((_gpuos_pauses + 1))
    [ "$((_gpuos_pauses % 300))" != 0 ] || echo "gpuos: still waiting for $1, for $((_gpuos_pauses / 5)) s" >&2
}

# gpuos_checkpoint_any_ranks: before gpuos_checkpoint_start, on all ranks: the program can begin from a checkpoint of any number of ranks. Where that is
# another one than its own, gpuos_checkpoint_from has a folder for each of the gpuos_checkpoint_ranks that have made it, rank-R-of-S, for all to read.
gpuos_checkpoint_any_ranks() {
    _gpuos_any=yes
}

# gpuos_checkpoint_start [RANK SIZE]: joins and waits until all ranks of the program have. 0: go on from gpuos_checkpoint_from, or begin anew
# if it is empty. 1: end with an error; standard error has the sentence.
gpuos_checkpoint_start() {
    gpuos_checkpoint_restored='' gpuos_checkpoint_from='' gpuos_checkpoint_ranks='' _gpuos_joined=''
    gpuos_checkpoint_lost='' gpuos_checkpoint_lost_why='' _gpuos_open=''
    [ -n "${GPUOS_CHECKPOINT_DIR:-}" ] || return 0
    if [ $# = 2 ]; then _gpuos_rank=$1 _gpuos_size=$2; else _gpuos_launcher; fi
    if ! _gpuos_join; then
        echo "gpuos: $gpuos_checkpoint_why" >&2
        return 1
    fi
}

# Keeps the file of the join open, and locked, in this shell and what it starts from here on: gpuos_mover sees by that when all of them have ended.
# Without flock, or where files cannot be locked, the file stays empty, which says nothing of a lock.
_gpuos_hold() {
    _gpuos_before=$_gpuos_held _gpuos_held=''
    if command -v flock >/dev/null 2>&1; then
        # One that the script does not use. In a subshell, as a redirection that fails ends some shells; exec ends them but for `command`.
        for _gpuos_fd in 9 8 7 6 5 4 3; do
            if ! (eval ": <&$_gpuos_fd") 2>/dev/null && eval "command exec $_gpuos_fd>>\"\$_gpuos_mine\"" 2>/dev/null; then
                _gpuos_held=$_gpuos_fd
                break
            fi
        done
        if [ -n "$_gpuos_held" ] && flock -n "$_gpuos_held" 2>/dev/null; then
            echo locked >&"$_gpuos_held" || :
        fi
    fi
    [ -z "$_gpuos_before" ] || eval "exec $_gpuos_before>&-"
}

_gpuos_join() {
    if ! _gpuos_number "$_gpuos_rank" || ! _gpuos_number "$_gpuos_size" ||
        [ "$_gpuos_size" -gt 65535 ] || [ "$_gpuos_rank" -ge "$_gpuos_size" ]; then
        _gpuos_fails "rank $_gpuos_rank of $_gpuos_size cannot be: ranks count from 0, and there are at most 65535"
        return
    fi
    _gpuos_nonce=$(date +%s%N)
    case $_gpuos_nonce in
    *[!0-9]*) _gpuos_nonce=$(date +%s)$(printf %09d "$$") ;;
    esac
    _gpuos_mine=$GPUOS_CHECKPOINT_DIR/ranks/$_gpuos_rank.$_gpuos_size.$_gpuos_nonce
    # What is said of a join is there before it.
    _gpuos_says=${_gpuos_any:+$GPUOS_CHECKPOINT_DIR/ranks/any.$_gpuos_rank.$_gpuos_nonce}
    if ! { printf '' >"${_gpuos_says:-/dev/null}" && printf '' >"$_gpuos_mine"; } 2>/dev/null; then
        _gpuos_fails "cannot join in $_gpuos_mine; in a container, bind \$GPUOS_CHECKPOINT_DIR into it at the same path, writable"
        return
    fi
    _gpuos_hold
    # Earlier starts of this rank: a script that starts programs in a loop would leave one file of each.
    for _gpuos_name in "$GPUOS_CHECKPOINT_DIR/ranks/$_gpuos_rank".*; do
        [ "${_gpuos_name##*.}" -ge "$_gpuos_nonce" ] 2>/dev/null || rm -f "$_gpuos_name"
    done
    _gpuos_pauses=0
    until _gpuos_read "$GPUOS_CHECKPOINT_DIR/start.$_gpuos_rank.$_gpuos_nonce"; do
        _gpuos_pause "gpuos_mover's answer to rank $_gpuos_rank of $_gpuos_size" '' || return
    done
    case $_gpuos_word in
    new) ;;
    restore)
        gpuos_checkpoint_restored=${_gpuos_rest%% *}
        gpuos_checkpoint_ranks=${_gpuos_rest##* }
        if [ "$gpuos_checkpoint_restored" = "$_gpuos_rest" ]; then
            gpuos_checkpoint_ranks=$_gpuos_size
            gpuos_checkpoint_from=$GPUOS_CHECKPOINT_DIR/restore.$_gpuos_rank.$_gpuos_nonce
        else
            gpuos_checkpoint_from=$GPUOS_CHECKPOINT_DIR/restored.$gpuos_checkpoint_restored
        fi
        ;;
    failed) _gpuos_fails "$_gpuos_rest"; return ;;
    *) _gpuos_fails "the answer \"$_gpuos_word\" is none that this version of gpuos-checkpoint.sh knows"; return ;;
    esac
    _gpuos_joined=yes
    if [ -n "$gpuos_checkpoint_restored" ] && [ "$_gpuos_rank" = 0 ]; then
        echo "gpuos: the program goes on from checkpoint $gpuos_checkpoint_restored" >&2
    fi
}

# What became of the checkpoint that was saved last, while that is not known.
_gpuos_look_back() {
    [ -n "$_gpuos_open" ] || return 0
    _gpuos_kept=$gpuos_checkpoint_why
    if gpuos_checkpoint_outcome "$_gpuos_open"; then
        gpuos_checkpoint_lost='' gpuos_checkpoint_lost_why=''
        if [ "$gpuos_checkpoint_outcome" = failed ]; then
            gpuos_checkpoint_lost=$_gpuos_open gpuos_checkpoint_lost_why=$gpuos_checkpoint_why
            _gpuos_begins='its start'
            [ -z "$gpuos_checkpoint_restored" ] || _gpuos_begins="checkpoint $gpuos_checkpoint_restored"
            if _gpuos_read "$GPUOS_CHECKPOINT_DIR/commit"; then _gpuos_begins="checkpoint $_gpuos_word"; fi
            [ "$_gpuos_rank" != 0 ] ||
                echo "gpuos: checkpoint $_gpuos_open was saved and came to nothing: $gpuos_checkpoint_why; the program goes on, and it would begin again from $_gpuos_begins" >&2
        fi
        _gpuos_open=''
    fi
    gpuos_checkpoint_why=$_gpuos_kept
}

# gpuos_checkpoint_refuse [TEXT]: what is in gpuos_checkpoint_from cannot be loaded. It is passed over from now on, in later runs of the job,
# too; gpuos_checkpoint_start then gives the one before. If one rank cannot load it, all ranks call this and start again. TEXT is a line
# for the user. 1: there is nothing to refuse, or the file cannot be made.
gpuos_checkpoint_refuse() {
    if [ -z "$_gpuos_joined" ] || [ -z "$gpuos_checkpoint_from" ]; then
        _gpuos_fails 'there is nothing to refuse: the program was given no checkpoint'
        return
    fi
    _gpuos_name=refused.$_gpuos_rank.$_gpuos_nonce
    if ! { printf '%s\n' "${1:-}" >"$GPUOS_CHECKPOINT_DIR/ranks/.$_gpuos_name" &&
        mv "$GPUOS_CHECKPOINT_DIR/ranks/.$_gpuos_name" "$GPUOS_CHECKPOINT_DIR/ranks/$_gpuos_name"; } 2>/dev/null; then
        _gpuos_fails "cannot make $GPUOS_CHECKPOINT_DIR/ranks/$_gpuos_name"
        return
    fi
    gpuos_checkpoint_restored='' gpuos_checkpoint_from='' _gpuos_joined=''
}

# gpuos_checkpoint_ask: asks for a checkpoint as soon as all ranks can; gpuos_checkpoint_wanted says so then. What comes sooner than the site's
# least-seconds after the last that the program has asked for waits. One rank asks. 1: the file cannot be made.
gpuos_checkpoint_ask() {
    [ -n "$_gpuos_joined" ] || return 0
    _gpuos_look_back
    { printf '' >"$GPUOS_CHECKPOINT_DIR/ranks/ask.$_gpuos_rank"; } 2>/dev/null ||
        _gpuos_fails "cannot make $GPUOS_CHECKPOINT_DIR/ranks/ask.$_gpuos_rank"
}

# Has no other process joined in the place of this one? It would have removed the file by which this one has joined, and both would write into
# one folder.
_gpuos_own() {
    [ -e "$_gpuos_mine" ] || _gpuos_fails "another process of this job has joined as rank $_gpuos_rank of $_gpuos_size after this one: a job makes checkpoints of one program at a time"
}

# 0: a checkpoint is wanted that this rank has not saved: gpuos_checkpoint_number, gpuos_checkpoint_reason. Cheap. Of several ranks one looks
# and tells the others the number.
gpuos_checkpoint_wanted() {
    [ -n "$_gpuos_joined" ] || return 1
    _gpuos_look_back
    _gpuos_read "$GPUOS_CHECKPOINT_DIR/request" && _gpuos_number "$_gpuos_word" || return 1
    [ "$_gpuos_word" -gt "$_gpuos_done" ] || return 1
    if ! _gpuos_own; then
        [ "$_gpuos_told" = yes ] || echo "gpuos: $gpuos_checkpoint_why, so no checkpoint is made here" >&2
        _gpuos_told=yes
        return 1
    fi
    gpuos_checkpoint_number=$_gpuos_word gpuos_checkpoint_reason=$_gpuos_rest
}

# gpuos_checkpoint_folder NUMBER [SECONDS]: waits, 60 s at most, for the folder of this rank and puts it into gpuos_checkpoint_into. 1: the
# checkpoint was given up or the limit was over, it is not wanted again, and the program goes on.
gpuos_checkpoint_folder() {
    gpuos_checkpoint_into=''
    [ -n "$_gpuos_joined" ] || { _gpuos_fails 'this job makes no checkpoints'; return; }
    _gpuos_own || { _gpuos_done=$1; return 1; }
    _gpuos_folder=$GPUOS_CHECKPOINT_DIR/$1/files/rank-$_gpuos_rank-of-$_gpuos_size
    _gpuos_pauses=0
    until [ -d "$_gpuos_folder" ]; do
        if gpuos_checkpoint_outcome "$1"; then
            _gpuos_done=$1
            [ "$gpuos_checkpoint_outcome" = failed ] || gpuos_checkpoint_why='a newer checkpoint exists'
            return 1
        fi
        _gpuos_pause "the folder for checkpoint $1" "${2:-60}" || { _gpuos_done=$1; return 1; }
    done
    gpuos_checkpoint_into=$_gpuos_folder
}

# gpuos_checkpoint_ready NUMBER: this rank's files are complete; it leaves them alone from now on. 1: the checkpoint was given up.
gpuos_checkpoint_ready() {
    [ -n "$_gpuos_joined" ] || { _gpuos_fails 'this job makes no checkpoints'; return; }
    _gpuos_done=$1
    _gpuos_own || return
    if ! { printf '' >>"$GPUOS_CHECKPOINT_DIR/$1/ready.$_gpuos_rank"; } 2>/dev/null; then
        _gpuos_fails "checkpoint $1 is not wanted any more"
        return
    fi
    _gpuos_look_back
    _gpuos_open=$1
}

# gpuos_checkpoint_outcome NUMBER: 0 when it has ended; gpuos_checkpoint_outcome is pending, committed or failed.
gpuos_checkpoint_outcome() {
    gpuos_checkpoint_outcome=pending gpuos_checkpoint_why='' _gpuos_newer=''
    if [ -z "$_gpuos_joined" ]; then
        gpuos_checkpoint_outcome=failed gpuos_checkpoint_why='this job makes no checkpoints'
        return 0
    fi
    # Before the others: a newer one is asked for when they say what became of this one, if it was ever asked for on this node.
    if _gpuos_read "$GPUOS_CHECKPOINT_DIR/request" && _gpuos_number "$_gpuos_word" && [ "$_gpuos_word" -gt "$1" ]; then
        _gpuos_newer="checkpoint $_gpuos_word is asked for"
    fi
    # In this order. If a newer one has failed, this one has ended before, and `commit` has it if it came to be.
    if _gpuos_read "$GPUOS_CHECKPOINT_DIR/failed" && _gpuos_number "$_gpuos_word"; then
        if [ "$_gpuos_word" = "$1" ]; then
            gpuos_checkpoint_outcome=failed gpuos_checkpoint_why=$_gpuos_rest
            return 0
        fi
        [ "$_gpuos_word" -lt "$1" ] || _gpuos_newer="checkpoint $_gpuos_word after it"
    fi
    if _gpuos_read "$GPUOS_CHECKPOINT_DIR/commit" && _gpuos_number "$_gpuos_word" && [ "$_gpuos_word" -ge "$1" ]; then
        gpuos_checkpoint_outcome=committed
    elif [ -n "$_gpuos_newer" ]; then
        gpuos_checkpoint_outcome=failed
        gpuos_checkpoint_why="it came to nothing, as $_gpuos_newer"
    else
        return 1
    fi
}

# gpuos_checkpoint_wait NUMBER [SECONDS]: 0 when it exists, 1 when it came to nothing (gpuos_checkpoint_why), 2 when the limit was over first.
gpuos_checkpoint_wait() {
    _gpuos_pauses=0
    until gpuos_checkpoint_outcome "$1"; do
        _gpuos_pause "the end of checkpoint $1" "${2:-}" || return 2
    done
    if [ "$_gpuos_open" = "$1" ]; then
        # The caller is told.
        _gpuos_open='' gpuos_checkpoint_lost='' gpuos_checkpoint_lost_why=''
        if [ "$gpuos_checkpoint_outcome" = failed ]; then
            gpuos_checkpoint_lost=$1 gpuos_checkpoint_lost_why=$gpuos_checkpoint_why
        fi
    fi
    [ "$gpuos_checkpoint_outcome" = committed ]
}

# gpuos_checkpoint_outlive: SIGTERM does not end this shell and the programs that it starts from here on. Slurm sends it to a job that it
# will preempt, which then has GraceTime to save. They end by SIGKILL then, some seconds later (KillWait), also after scancel.
gpuos_checkpoint_outlive() {
    trap '' TERM
}
