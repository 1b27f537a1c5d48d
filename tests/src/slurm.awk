# What squeue and `scontrol -d show job` print of the jobs in the files, which have a part of what scontrol would print.
# rows=FORMAT: squeue's answer in a format such as `JobID:<end>,State:<end>`. Else the records, whole.

BEGIN {
    if (rows == "") next_record()
    count = split(rows, fields, ",")
    end = substr(fields[1], index(fields[1], ":") + 1)
    for (i = 1; i <= count; i++) {
        sub(/:.*/, "", fields[i])
        printf "%s%s", fields[i], end
    }
    if (rows != "") print ""
}

function next_record() {
    split("", v)
    split("", lines)
    split("", details)
    number = 0
    detailed = 0
}

function get(key, otherwise) { return key in v ? v[key] : otherwise }

function cell(name, user) {
    split(get("UserId", "root(0)"), user, /[()]/)
    if (name == "JobID") return get("JobId")
    if (name == "ArrayJobID") return get("ArrayJobId", get("JobId"))
    if (name == "ArrayTaskID") return get("ArrayTaskId", "N/A")
    if (name == "HetJobID") return get("HetJobId", "N/A")
    if (name == "HetJobOffset") return get("HetJobOffset", "N/A")
    if (name == "UserID") return user[2]
    if (name == "UserName") return user[1]
    if (name == "State") return get("JobState", "RUNNING")
    if (name == "RestartCnt") return get("Restarts", "0")
    if (name == "Requeue" || name == "BatchFlag") return get(name, "0")
    if (name == "ReqNodes") return get("ReqNodeList", "")
    if (name == "Name") return get("JobName", "")
    if (name == "Feature") return get("Features", "(null)")
    if (name == "PriorityLong") return get("Priority", "1")
    if (name == "admin_comment") return get("AdminComment", "(null)")
    if (name == "system_comment") return get("SystemComment", "(null)")
    if (name == "cpus-per-tres") return get("CpusPerTres", "N/A")
    if (name == "mem-per-tres") return get("MemPerTres", "N/A")
    if (name == "tres-per-job") return get("TresPerJob", "N/A")
    if (name == "tres-per-node") return get("TresPerNode", "N/A")
    if (name == "tres-per-socket") return get("TresPerSocket", "N/A")
    if (name == "tres-per-task") return get("TresPerTask", "N/A")
    return get(name, "(null)")
}

function line(keys, n, all, i, one, value, text) {
    n = split(keys, all, " ")
    for (i = 1; i <= n; i++) {
        split(all[i], one, "~")
        value = get(one[1], one[2])
        text = text (i > 1 ? " " : "   ") one[1] "=" value
    }
    print text
}

function flush_record(i, first) {
    if (!("JobId" in v)) return
    if (rows != "") {
        for (i = 1; i <= count; i++) printf "%s%s", cell(fields[i]), end
        print ""
        return
    }
    if ("Socks/Node" in v) {
        for (i = 1; i <= number; i++) print lines[i]
        return
    }
    print lines[1]
    if ("SLUID" in v) line("SLUID~")
    line("UserId~root(0) GroupId~root(0) MCS_label~N/A")
    line("Priority~1 Nice~0 Account~(null) QOS~(null)")
    line("JobState~RUNNING Reason~None Dependency~(null)")
    line("Requeue~0 Restarts~0 BatchFlag~0 Reboot~0 ExitCode~0:0")
    line("DerivedExitCode~0:0")
    line("RunTime~00:02:00 TimeLimit~UNLIMITED TimeMin~N/A")
    line("SubmitTime~2026-11-20T20:40:00 EligibleTime~2026-11-20T20:40:00")
    line("AccrueTime~2026-11-20T20:40:00")
    line("StartTime~2026-11-20T20:40:00 EndTime~Unknown Deadline~N/A")
    line("SuspendTime~None SecsPreSuspend~0 LastSchedEval~2026-11-20T20:40:00 Scheduler~Main")
    line("Partition~all AllocNode:Sid~localhost:1")
    line("ReqNodeList~(null) ExcNodeList~(null)")
    line("NodeList~")
    line("NumNodes~1 NumCPUs~1 NumTasks~1 CPUs/Task~1 ReqB:S:C:T~0:0:*:*")
    line("ReqTRES~(null)")
    line("AllocTRES~(null)")
    line("Socks/Node~* NtasksPerN:B:S:C~0:0:*:* CoreSpec~*")
    if (detailed) line("JOB_GRES~(null)")
    for (i = 1; i <= detailed; i++) print "     " details[i]
    line("MinCPUsNode~1 MinMemoryNode~0 MinTmpDiskNode~0")
    line("Features~(null) DelayBoot~00:00:00")
    line("OverSubscribe~OK Contiguous~0 Licenses~(null) Network~(null)")
    line("Command~(null)")
    line("WorkDir~/")
    if ("SystemComment" in v) line("SystemComment~")
    if ("TresPerNode" in v) line("TresPerNode~")
    print ""
}

/^JobId=/ {
    flush_record()
    next_record()
}

{
    lines[++number] = $0
    if ($1 ~ /^Nodes=/) details[++detailed] = substr($0, index($0, "Nodes="))
    for (i = 1; i <= NF; i++) {
        at = index($i, "=")
        key = substr($i, 1, at - 1)
        if (at == 0 || key in v) continue
        v[key] = substr($i, at + 1)
        if (key == "JobName" || key == "SystemComment" || key == "AdminComment") {
            v[key] = substr($0, index($0, key "=") + at)
            sub(/ +$/, "", v[key])
            break
        }
    }
}

END { flush_record() }
