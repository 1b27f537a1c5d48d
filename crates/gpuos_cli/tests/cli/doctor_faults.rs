//! Faults planted in a sound installation: `gpuos doctor` has to name each, with what mends it and exit code 1.

use std::fs;

use crate::doctor_bed::{Bed, none_missed};
use crate::doctor_planted::{Fault, GRES, PLUGIN_FILES, PLUGSTACK, SLURM_CONF, remove};
use crate::doctor_planted_more::{DAEMONS, GPUOS_TOML};

fn seen(faults: &[Fault]) {
    let mut missed = Vec::new();
    for fault in faults {
        let bed = Bed::new();
        (fault.plant)(&bed);
        bed.scontrol(!fault.down);
        let (code, found) = bed.doctor(&[]);
        let told = found
            .iter()
            .any(|one| fault.words.iter().all(|word| one.contains(word)));
        if !told || code != 1 {
            missed.push(format!(
                "{} (exit {code}, wanted {:?}): {found:#?}",
                fault.name, fault.words
            ));
        }
    }
    none_missed(&missed);
}

#[test]
fn a_sound_installation_gives_no_finding() {
    let bed = Bed::new();
    let (code, found) = bed.doctor(&[]);
    assert_eq!((code, found), (0, Vec::new()));
    assert!(bed.run(&["doctor"]).out.ends_with("\nAll is well.\n"));
    // A gpuos.toml that slurmctld has read is none either, nor one with CRLF, nor a comment in slurm.conf, a quoted
    // value, an included file, a continued line, or keys in other letters.
    let toml = "[policy]\r\nplacement = \"pack\"\r\n[[nodes]]\r\nmatch = \"n[1-4]\"\r\ntype = \"dgx-h100\"\r\n";
    bed.file("gpuos.toml", toml);
    let sum = gpuos_model::fnv::fnv(toml.bytes());
    bed.log(&format!(
        "[3] select/gpuos: {} is read, checksum {sum:016x}\n",
        bed.path("gpuos.toml")
    ));
    let conf = fs::read_to_string(bed.path("slurm.conf")).unwrap();
    let (first, nodes) = conf.split_once("NodeName=").unwrap();
    bed.file("more.conf", &format!("# nodes\nNODEname={nodes}"));
    let first = first
        .replace("SelectType=", "selecttype = ")
        .replace("GresTypes=gpu", "GRESTYPES=\\\n  gpu");
    bed.file(
        "slurm.conf",
        &format!("# SelectType=select/linear\n{first}INCLUDE more.conf\nComment=\"a # b\"\n"),
    );
    let (code, found) = bed.doctor(&[]);
    assert_eq!((code, found), (0, Vec::new()));
}

#[test]
fn faults_of_plugin_files_are_seen() {
    seen(PLUGIN_FILES);
}

#[test]
fn faults_of_slurm_conf_are_seen() {
    seen(SLURM_CONF);
}

#[test]
fn faults_of_gres_and_plugstack_are_seen() {
    seen(GRES);
    seen(PLUGSTACK);
}

#[test]
fn faults_of_gpuos_toml_are_seen() {
    seen(GPUOS_TOML);
}

#[test]
fn faults_of_daemons_are_seen() {
    seen(DAEMONS);
    let all = [
        PLUGIN_FILES,
        SLURM_CONF,
        GRES,
        PLUGSTACK,
        GPUOS_TOML,
        DAEMONS,
    ];
    let all: usize = all.iter().map(|faults| faults.len()).sum();
    assert!(all >= 90, "{all}");
}

/// Either way: munge looks at both ends.
#[test]
fn a_clock_that_differs_from_slurmctlds_is_seen() {
    for (differs, is_seen) in [
        ("-10 minutes", true),
        ("10 minutes", true),
        ("-9 seconds", false),
    ] {
        let bed = Bed::new();
        let now = "date +%FT%T";
        let scontrol = fs::read_to_string(bed.path("scontrol.text")).unwrap();
        assert!(scontrol.contains(now));
        let other = scontrol.replace(now, &format!("date -d '{differs}' +%FT%T"));
        bed.site.program("scontrol", &other);
        let (_, found) = bed.doctor(&[]);
        let told = found.iter().any(|one| {
            one.starts_with("warn clock: slurmctld's clock and this machine's differ by")
        });
        assert_eq!(told, is_seen, "{differs}: {found:#?}");
    }
}

/// On a node with GPUs somebody has to watch them.
#[test]
fn a_gpuosd_that_does_not_run_is_seen() {
    let bed = Bed::new();
    let dir = bed.path("run");
    let (code, found) = bed.doctor(&["--node-name", "n1", "--runtime-dir", &dir]);
    assert_eq!(code, 1);
    let told = found.iter().any(|one| {
        one.starts_with("warn gpuosd: gpuosd does not run on n1: nobody watches the GPUs")
    });
    assert!(told, "{found:#?}");
}

/// Where checkpoints are made, each node has to have a gpuos_mover.
#[test]
fn a_gpuos_mover_that_does_not_run_is_seen() {
    let bed = Bed::new();
    let dir = bed.path("run");
    let about = || {
        let (_, found) = bed.doctor(&["--node-name", "n1", "--runtime-dir", &dir]);
        let mut all = found.into_iter();
        all.find(|one| one.starts_with("warn gpuos_mover: "))
    };
    assert_eq!(about(), None);
    bed.file("gpuos.toml", "[checkpoint]\nenabled = true\n");
    let told = about().unwrap();
    for part in [
        "gpuos_mover does not run on n1",
        "run there without checkpoints",
        "`systemctl enable --now gpuos_mover`",
    ] {
        assert!(told.contains(part), "{told}");
    }
    crate::ckpt_bed::mover(&bed.site, Default::default());
    assert_eq!(about(), None);
    // A machine that is no node needs none.
    let (_, found) = bed.doctor(&["--node-name", "login", "--runtime-dir", &bed.path("none")]);
    assert!(
        !found.iter().any(|one| one.contains("gpuos_mover")),
        "{found:#?}"
    );
}

/// A job that is preempted without notice cannot save.
#[test]
fn a_preemption_that_leaves_no_time_for_a_checkpoint_is_seen() {
    let bed = Bed::new();
    let about = || {
        let (_, found) = bed.doctor(&["--node-name", "login"]);
        let mut all = found.into_iter();
        all.find(|one| one.contains(" GraceTime: "))
    };
    bed.set("PreemptType", "preempt/partition_prio");
    bed.set("PreemptMode", "REQUEUE");
    let partitions = |grace: &str| {
        let text = format!(
            "PartitionName=main\n   GraceTime={grace} PriorityTier=1 PreemptMode=REQUEUE\n\n\
             PartitionName=high\n   GraceTime=0 PriorityTier=10 PreemptMode=REQUEUE\n\n"
        );
        bed.file("partitions.txt", &text);
    };
    partitions("0");
    assert_eq!(about(), None, "no checkpoints are made here");
    bed.file("gpuos.toml", "[checkpoint]\nenabled = true\n");
    let told = about().unwrap();
    for part in [
        "warn GraceTime: ",
        "partition main (GraceTime=0) are preempted before a checkpoint can be made",
        "GraceTime=120",
    ] {
        assert!(told.contains(part), "{told}");
    }
    partitions("14");
    let told = about().unwrap();
    assert!(told.contains("main (GraceTime=14)"), "{told}");
    partitions("120");
    assert_eq!(about(), None);
    partitions("0");
    bed.set("PreemptType", "preempt/none");
    assert_eq!(about(), None, "nobody is preempted");
}

/// The control groups of the machine that the tests run on, against the version that it has and the one that it has not.
#[test]
fn the_control_groups_of_this_machine_are_seen() {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (mounts, groups) = (read("/proc/self/mounts"), read("/proc/self/cgroup"));
    if !mounts.contains(" /sys/fs/cgroup") {
        return;
    }
    let (has, lacks) = match groups.lines().any(|line| !line.starts_with("0:")) {
        true => ("cgroup/v1", "cgroup/v2"),
        false => ("cgroup/v2", "cgroup/v1"),
    };
    let told = |plugin: &str| {
        let bed = Bed::new();
        bed.file("plugins/cgroup_v1.so", "");
        bed.file("plugins/cgroup_v2.so", "");
        // The kernel's programs for devices are not asked for: it may have none.
        bed.file("cgroup.conf", &format!("CgroupPlugin={plugin}\n"));
        let dir = bed.path("run");
        let (_, found) = bed.doctor(&["--node-name", "n1", "--runtime-dir", &dir]);
        let own = found
            .into_iter()
            .filter(|one| one.contains(" cgroup version: "));
        own.collect::<Vec<String>>()
    };
    assert_eq!(told(has), [""; 0], "{mounts}");
    let found = told(lacks);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0].starts_with("fail ") && found[0].contains("cgroup.conf:1"),
        "{found:#?}"
    );
}

/// Nothing to look at is neither well nor a finding.
#[test]
fn without_slurm_there_is_nothing_to_look_at() {
    let bed = Bed::new();
    bed.scontrol(false);
    remove(&bed, "slurm.conf");
    let answer = bed.run(&["doctor"]);
    assert_eq!(answer.code, 2, "{}", answer.out);
    assert!(
        answer.out.contains("there is no slurm.conf: not at"),
        "{}",
        answer.out
    );
    assert!(
        answer.out.ends_with("Nothing could be looked at.\n"),
        "{}",
        answer.out
    );
}

/// What others wrote does not move the cursor.
#[test]
fn text_of_others_is_spelt_out() {
    let bed = Bed::new();
    bed.file(
        "log/ctld.log",
        "[1] x started on cluster cap\n[2] fatal: job \u{1b}[2J\u{1b}]0;x\u{7} ends\n",
    );
    bed.scontrol(false);
    let answer = bed.run(&["doctor"]);
    assert_eq!(answer.code, 1);
    assert!(
        !answer.out.contains('\u{1b}') && !answer.out.contains('\u{7}'),
        "{:?}",
        answer.out
    );
    assert!(
        answer.out.contains("fatal: job \\u{1b}[2J"),
        "{}",
        answer.out
    );
}
