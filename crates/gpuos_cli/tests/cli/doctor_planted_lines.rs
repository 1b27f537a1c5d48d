//! Faults of a site's files that go together or do not: lines of gres.conf and slurm.conf.
//! Each row plants one fault into a sound installation, and says the finding's subject and its fix.

use std::fs;

use gpuos_config::gpuos_toml::Config;
use gpuos_core::wire::MoverSettings;

use crate::ckpt_bed::{Part, mover};
use crate::doctor_bed::{Bed, none_missed};
use crate::doctor_planted_tables::TABLES;

/// A fault.
pub struct Fault {
    name: &'static str,
    plant: fn(&Bed),
    /// How the finding begins: `fail gres.conf`, and words of its message.
    subject: &'static str,
    words: &'static str,
    /// Words of its fix.
    fix: &'static str,
}

pub const fn fault(
    name: &'static str,
    plant: fn(&Bed),
    subject: &'static str,
    words: &'static str,
    fix: &'static str,
) -> Fault {
    Fault {
        name,
        plant,
        subject,
        words,
        fix,
    }
}

pub const TOML: &str = "[checkpoint]\nenabled = true\n[memory]\noversubscribe = true\nturns = 2\n\
                    [[nodes]]\nmatch = \"n[1-4]\"\ntype = \"dgx-h100\"\n";

/// A sound installation with checkpoints, memory in tiers and turns.
pub fn bed() -> Bed {
    let bed = Bed::new();
    toml(&bed, TOML);
    bed.file(
        "cgroup.conf",
        "ConstrainDevices=yes\nConstrainRAMSpace=yes\n",
    );
    bed.add("gres.conf", "Name=shard Count=32");
    bed.set("GresTypes", "gpu,shard");
    bed.set("SelectTypeParameters", "CR_Core_Memory");
    bed.site.edit(
        "slurm.conf",
        "CoresPerSocket=8 Gres=gpu:h100:8",
        "CoresPerSocket=8 RealMemory=2000000 Gres=gpu:h100:8,shard:h100:32",
    );
    bed
}

/// gpuos.toml, which slurmctld has read.
pub fn toml(bed: &Bed, text: &str) {
    bed.file("gpuos.toml", text);
    let sum = gpuos_model::fnv::fnv(text.bytes());
    bed.log(&format!(
        "[3] select/gpuos: {} is read, checksum {sum:016x}\n",
        bed.path("gpuos.toml")
    ));
}

pub fn with_toml(bed: &Bed, from: &str, to: &str) {
    assert!(TOML.contains(from), "{from}");
    toml(bed, &TOML.replace(from, to));
}

pub fn conf(bed: &Bed, from: &str, to: &str) {
    bed.site.edit("slurm.conf", from, to);
}

fn gres(bed: &Bed, gpus: &str) {
    let text = format!("AutoDetect=off\n{gpus}\nName=shard Count=32\n");
    bed.file("gres.conf", &text);
}

const LINES: &[Fault] = &[
    fault(
        "a GPU without a device file",
        |bed| gres(bed, "NodeName=n[1-4] Name=gpu Type=h100 Count=8"),
        "fail gres.conf",
        "a line of GRES gpu has no File=, so slurmd leaves it out: n[1-4]",
        "write File=/dev/nvidia[0-7]",
    ),
    fault(
        "one of two lines without a device file",
        |bed| {
            gres(
                bed,
                "NodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-6]\nNodeName=n[1-4] Name=gpu Type=h100",
            )
        },
        "fail gres.conf",
        "has no File=",
        "AutoDetect=nvml",
    ),
    fault(
        "a line for all nodes without a device file",
        |bed| gres(bed, "Name=gpu Type=h100 Count=8"),
        "fail gres.conf",
        "has no File=",
        "File=/dev/nvidia",
    ),
    fault(
        "cores beyond the node",
        |bed| {
            gres(
                bed,
                "NodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-7] Cores=0-31",
            )
        },
        "fail gres.conf",
        "Cores=0-31, and the cores of n[1-4] are 0-15",
        "write cores from 0 to 15",
    ),
    fault(
        "one core beyond the node",
        |bed| {
            gres(
                bed,
                "NodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-7] Cores=0-7,16",
            )
        },
        "fail gres.conf",
        "Cores=0-7,16",
        "not their threads",
    ),
    fault(
        "cores beyond the node by Slurm's other name",
        |bed| {
            gres(
                bed,
                "NodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-7] CPUs=0-99",
            )
        },
        "fail gres.conf",
        "Cores=0-99",
        "write cores from 0 to 15",
    ),
    fault(
        "cores that are none",
        |bed| {
            gres(
                bed,
                "NodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-7] Cores=all",
            )
        },
        "fail gres.conf",
        "Cores=all is no list of cores",
        "such as Cores=0-7",
    ),
    fault(
        "an empty entry in Links=",
        |bed| {
            gres(
                bed,
                "NodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-7] Links=-1,4,,4,0,0,0,0",
            )
        },
        "fail gres.conf",
        "Links=-1,4,,4,0,0,0,0: its entry 3 is empty",
        "-1 for the GPU itself",
    ),
    fault(
        "a word in Links=",
        |bed| {
            gres(
                bed,
                "NodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-7] Links=X,4,4,4,4,4,4,4",
            )
        },
        "fail gres.conf",
        "X is no number of links",
        "a number of links to each GPU",
    ),
    fault(
        "two GPUs itself in Links=",
        |bed| {
            gres(
                bed,
                "NodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-7] Links=-1,-1,0,0,0,0,0,0",
            )
        },
        "fail gres.conf",
        "-1 stands there 2 times",
        "-1 for the GPU itself",
    ),
    fault(
        "a count that is not that of the files",
        |bed| {
            gres(
                bed,
                "NodeName=n[1-4] Name=gpu Type=h100 Count=4 File=/dev/nvidia[0-7]",
            )
        },
        "fail gres.conf",
        "Count=4, and File= names 8 device files",
        "take Count= out",
    ),
    fault(
        "a count in thousands that is not that of the files",
        |bed| {
            gres(
                bed,
                "NodeName=n[1-4] Name=gpu Type=h100 Count=1K File=/dev/nvidia[0-7]",
            )
        },
        "fail gres.conf",
        "Count=1024, and File= names 8 device files",
        "take Count= out",
    ),
    fault(
        "too few GPUs on nodes that do not find them as the others do",
        |bed| {
            let nodes = "NodeName=n[1-4] AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia[0-6]";
            bed.file(
                "gres.conf",
                &format!("AutoDetect=nvml\n{nodes}\nName=shard Count=32\n"),
            )
        },
        "fail gres.conf",
        "n[1-4]: slurm.conf gives 8 GPUs, gres.conf 7",
        "make Gres= in slurm.conf",
    ),
    fault(
        "a list of nodes that is none in gres.conf",
        |bed| {
            gres(
                bed,
                "Name=gpu Type=h100 File=/dev/nvidia[0-7]\nNodeName=n[1- Name=gpu Type=h100 File=/dev/nvidia8",
            )
        },
        "fail gres.conf",
        "NodeName: ",
        "correct the names",
    ),
    fault(
        "a device twice",
        |bed| {
            gres(
                bed,
                "NodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-3]\nNodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[3-6]",
            )
        },
        "fail gres.conf",
        "/dev/nvidia3 of n1 stands there twice",
        "once for a node",
    ),
    fault(
        "nodes that there are not in gres.conf",
        |bed| {
            gres(
                bed,
                "NodeName=n[1-6] Name=gpu Type=h100 File=/dev/nvidia[0-7]",
            )
        },
        "warn gres.conf",
        "it names nodes that slurm.conf does not have: n[5-6]",
        "correct the names",
    ),
    fault(
        "gres.conf that all may write",
        |bed| bed.mode(&bed.path("gres.conf"), 0o666),
        "fail files",
        "gres.conf may be written by all users",
        "chmod o-w",
    ),
    fault(
        "cgroup.conf that all may write",
        |bed| bed.mode(&bed.path("cgroup.conf"), 0o646),
        "fail files",
        "cgroup.conf may be written by all users",
        "chmod o-w",
    ),
    fault(
        "plugstack.conf that all may write",
        |bed| bed.mode(&bed.path("plugstack.conf"), 0o666),
        "fail files",
        "plugstack.conf may be written by all users",
        "chmod o-w",
    ),
    fault(
        "topology.conf that all may write",
        |bed| bed.mode(&bed.path("topology.conf"), 0o666),
        "fail files",
        "topology.conf may be written by all users",
        "chmod o-w",
    ),
    fault(
        "misspelt key of cgroup.conf",
        |bed| {
            bed.file(
                "cgroup.conf",
                "ConstrainDevices=yes\nConstrainRAMSpace=yes\nConstrainCore=yes\n",
            )
        },
        "fail cgroup",
        "constraincore is no key of cgroup.conf; constraincores is",
        "correct the key",
    ),
    fault(
        "misspelt argument of spank_gpuos.so",
        |bed| {
            bed.file(
                "plugstack.conf",
                "optional spank_gpuos.so preloda=/usr/lib/x.so\n",
            )
        },
        "warn plugstack",
        "spank_gpuos.so knows no argument preloda=/usr/lib/x.so",
        "preload=PATH",
    ),
    fault(
        "argument of spank_gpuos.so that is no path",
        |bed| {
            bed.file(
                "plugstack.conf",
                "optional spank_gpuos.so socket=gpuosd.sock\n",
            )
        },
        "warn plugstack",
        "socket= is a path from the root",
        "socket=PATH",
    ),
    fault(
        "a node in two lines",
        |bed| {
            bed.add(
                "slurm.conf",
                "NodeName=n4 Sockets=2 CoresPerSocket=8 RealMemory=2000000 Gres=gpu:h100:8",
            )
        },
        "fail nodes",
        "n4 stand in two NodeName= lines",
        "keep each node in one line",
    ),
    fault(
        "a partition of nodes that there are not",
        |bed| bed.add("slurm.conf", "PartitionName=more Nodes=n[1-6]"),
        "fail nodes",
        "partition more names nodes that slurm.conf does not have: n[5-6]",
        "correct Nodes=",
    ),
    fault(
        "a node in no partition",
        |bed| conf(bed, "Nodes=ALL", "Nodes=n[1-3]"),
        "warn nodes",
        "in no partition: n4",
        "add them to Nodes=",
    ),
    fault(
        "no partition",
        |bed| conf(bed, "PartitionName=main Nodes=ALL Default=YES\n", ""),
        "warn nodes",
        "slurm.conf has no partition",
        "PartitionName=main Nodes=ALL",
    ),
    fault(
        "a partition without nodes",
        |bed| bed.add("slurm.conf", "PartitionName=empty State=UP"),
        "warn nodes",
        "partition empty has no nodes",
        "Nodes=ALL",
    ),
    fault(
        "one address for several nodes",
        |bed| {
            conf(
                bed,
                "NodeName=n[1-4] ",
                "NodeName=n[1-4] NodeAddr=10.0.0.1 ",
            )
        },
        "fail nodes",
        "NodeAddr=10.0.0.1 is the address of all 4 nodes of the line, on one port",
        "NodeAddr=…[1-4]",
    ),
    fault(
        "too few addresses",
        |bed| {
            conf(
                bed,
                "NodeName=n[1-4] ",
                "NodeName=n[1-4] NodeAddr=10.0.0.[1-3] ",
            )
        },
        "fail nodes",
        "NodeAddr=10.0.0.[1-3] has 3 values for 4 nodes",
        "as many as nodes",
    ),
    fault(
        "too few host names",
        |bed| {
            conf(
                bed,
                "NodeName=n[1-4] ",
                "NodeName=n[1-4] NodeHostname=h[1-2] ",
            )
        },
        "fail nodes",
        "NodeHostname=h[1-2] has 2 values for 4 nodes",
        "as many as nodes",
    ),
    fault(
        "too few ports",
        |bed| conf(bed, "NodeName=n[1-4] ", "NodeName=n[1-4] Port=[7000-7002] "),
        "fail nodes",
        "has 3 values for 4 nodes",
        "or one for all",
    ),
    fault(
        "CPUs that the sockets do not have",
        |bed| conf(bed, "Sockets=2", "CPUs=20 Sockets=2"),
        "warn nodes",
        "CPUs=20, and Sockets, CoresPerSocket and ThreadsPerCore come to 16",
        "slurmd -C",
    ),
    fault(
        "a default of memory above the node's",
        |bed| bed.set("DefMemPerNode", "3000000"),
        "warn nodes",
        "DefMemPerNode=3000000, and a node has RealMemory=2000000",
        "lower DefMemPerNode",
    ),
];

fn missed(faults: &[Fault]) -> Vec<String> {
    let miss = |fault: &Fault| {
        let bed = bed();
        (fault.plant)(&bed);
        let (code, found) = bed.doctor(&[]);
        let told = |one: &&String| {
            let advice = one.rsplit(" | ").next().unwrap_or_default();
            one.starts_with(&format!("{}: ", fault.subject))
                && one.contains(fault.words)
                && advice.contains(fault.fix)
        };
        let seen = code == 1 && found.iter().filter(told).count() == 1;
        (!seen).then(|| {
            let Fault {
                name,
                subject,
                words,
                fix,
                ..
            } = fault;
            format!("{name} (exit {code}; {subject}: {words} … {fix}): {found:#?}")
        })
    };
    faults.iter().filter_map(miss).collect()
}

fn seen(faults: &[Fault]) {
    none_missed(&missed(faults));
}

#[test]
fn sound_files_give_no_finding() {
    assert_eq!(bed().doctor(&[]), (0, Vec::new()));
    let sound: [fn(&Bed); 9] = [
        |bed| {
            gres(
                bed,
                "NodeName=n[1-4] Name=gpu Type=h100 File=/dev/nvidia[0-7] Cores=0-15 Links=0,0,0,-1,0,0,0,0",
            )
        },
        |bed| {
            gres(
                bed,
                "NodeName=n[1-4] Name=gpu Type=h100 Count=8 File=/dev/nvidia[0-7]",
            )
        },
        |bed| gres(bed, "Name=gpu Type=h100 File=/dev/nvidia[0-7]"),
        // All files of a `MultipleFiles=` are one GPU.
        |bed| {
            gres(
                bed,
                "Name=gpu Type=h100 File=/dev/nvidia[0-6]\nName=gpu Type=h100 MultipleFiles=/dev/nvidia7,/dev/nvidia-caps/nvidia-cap[1-2]",
            )
        },
        |bed| {
            conf(
                bed,
                "NodeName=n[1-4] ",
                "NodeName=n[1-4] NodeAddr=10.0.0.[1-4] Port=7000 ",
            )
        },
        // Several slurmds of one host, each with its port.
        |bed| {
            conf(
                bed,
                "NodeName=n[1-4] ",
                "NodeName=n[1-4] NodeAddr=10.0.0.1 Port=[7000-7003] ",
            )
        },
        |bed| {
            conf(bed, "Nodes=ALL", "Nodes=n[1-2],rest");
            bed.add("slurm.conf", "NodeSet=rest Nodes=n[3-4]");
        },
        |bed| conf(bed, "Sockets=2", "CPUs=32 ThreadsPerCore=2 Sockets=2"),
        |bed| with_toml(bed, "enabled = true", "enabled = true\nscheme = \"rs:3+1\""),
    ];
    for (nth, plant) in sound.iter().enumerate() {
        let bed = bed();
        plant(&bed);
        assert_eq!(bed.doctor(&[]), (0, Vec::new()), "{nth}");
    }
}

#[test]
fn faults_of_lines_are_seen() {
    seen(LINES);
}

#[test]
fn faults_of_checkpoints_and_memory_are_seen() {
    seen(TABLES);
}

/// What a running gpuos_mover tells of itself: that it runs with another [checkpoint], and what does not work.
#[test]
fn a_mover_that_runs_with_other_settings_is_seen() {
    let bed = bed();
    fs::create_dir_all(bed.path("store")).unwrap();
    bed.mode(&bed.path("store"), 0o700);
    bed.file("key", &"k".repeat(64));
    bed.mode(&bed.path("key"), 0o400);
    let config = Config::parse(TOML, "x").unwrap();
    let settings = MoverSettings {
        store: bed.path("store"),
        key: bed.path("key"),
        digest: config.checkpoint.digest(),
        troubles: vec![
            "cannot read the owner of job 7: its code does not verify with this key".into(),
        ],
    };
    let part = Part {
        settings: Some(settings),
        ..Part::default()
    };
    mover(&bed.site, part);
    let about = |words: &str| {
        let (_, found) = bed.doctor(&["--node-name", "n1", "--runtime-dir", &bed.path("run")]);
        let mut all = found.into_iter();
        all.find(|one| one.contains(words))
    };
    let trouble = about("does not verify with this key").unwrap();
    assert!(trouble.starts_with("warn gpuos_mover: n1: "), "{trouble}");
    assert_eq!(about("[checkpoint] of"), None);
    // Another part of the file is nothing to the mover.
    toml(&bed, &TOML.replace("turns = 2", "turns = 3"));
    assert_eq!(about("[checkpoint] of"), None);
    with_toml(&bed, "enabled = true", "enabled = true\nkeep = 5");
    let edited = about("[checkpoint] of").unwrap();
    assert!(
        edited.starts_with("warn restart: ")
            && edited.contains("is another one than that with which gpuos_mover of n1 runs"),
        "{edited}"
    );
    assert!(
        edited.contains("`systemctl restart gpuos_mover`"),
        "{edited}"
    );
    bed.mode(&bed.path("store"), 0o755);
    let open = about("the store of n1").unwrap();
    assert!(
        open.starts_with("fail checkpoints: ") && open.contains("with mode 755"),
        "{open}"
    );
    bed.mode(&bed.path("key"), 0o444);
    let open = about("the key of gpuos_mover").unwrap();
    assert!(open.contains("can be had by others (mode 444)"), "{open}");
}
