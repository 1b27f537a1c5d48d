//! A job's record as slurmctld prints it, for tests.

/// The record of one GPU job on n1 in which these fields have these values; `first` is its first line.
pub(crate) fn record(first: &str, fields: &[(&str, &str)]) -> String {
    let mut text = format!("{first}\n{REST}");
    for (key, value) in fields {
        let at = text.find(&format!(" {key}=")).expect(key) + key.len() + 2;
        let line = text[at..].find('\n').expect("a line");
        let end = text[at..at + line].find(' ').unwrap_or(line);
        text.replace_range(at..at + end, value);
    }
    text
}

const REST: &str = "   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   Priority=1 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   DerivedExitCode=0:0
   RunTime=00:02:00 TimeLimit=UNLIMITED TimeMin=N/A
   SubmitTime=2026-11-22T19:46:15 EligibleTime=2026-11-22T19:46:15
   AccrueTime=2026-11-22T19:46:15
   StartTime=2026-11-22T19:46:16 EndTime=Unknown Deadline=N/A
   SuspendTime=None SecsPreSuspend=0 LastSchedEval=2026-11-22T19:46:16 Scheduler=Main
   Partition=all AllocNode:Sid=localhost:22770
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n1
   BatchHost=n1
   NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   ReqTRES=cpu=1,mem=16M,node=1,billing=1
   AllocTRES=cpu=1,mem=16M,node=1,billing=1
   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
   JOB_GRES=gpu:h100:1
     Nodes=n1 CPU_IDs=57 Mem=16 GRES=gpu:h100:1(IDX:5)
   MinCPUsNode=1 MinMemoryCPU=16M MinTmpDiskNode=0
   Features=(null) DelayBoot=00:00:00
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)
   Command=(null)
   WorkDir=/home/ann
   StdErr=/dev/null
   StdIn=/dev/null
   StdOut=/dev/null
   TresPerNode=gres/gpu:1
   

";
