//! Faults of plugins and of Slurm's own files, for `gpuos doctor`: what is planted, and the words that have to be said.

use std::fs;
use std::os::unix::fs::symlink;

use crate::doctor_bed::Bed;

/// A fault, and the words that have to stand in one finding.
pub struct Fault {
    pub name: &'static str,
    /// Whether slurmctld is down, as this fault would leave it.
    pub down: bool,
    pub plant: fn(&Bed),
    pub words: &'static [&'static str],
}

pub const fn up(name: &'static str, plant: fn(&Bed), words: &'static [&'static str]) -> Fault {
    Fault {
        name,
        down: false,
        plant,
        words,
    }
}

pub const fn down(name: &'static str, plant: fn(&Bed), words: &'static [&'static str]) -> Fault {
    Fault {
        name,
        down: true,
        plant,
        words,
    }
}

fn truncate(bed: &Bed, plugin: &str, length: u64) {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(bed.plugin(plugin))
        .unwrap();
    file.set_len(length).unwrap();
}

pub fn remove(bed: &Bed, name: &str) {
    fs::remove_file(bed.path(name)).unwrap();
}

pub const PLUGIN_FILES: &[Fault] = &[
    down(
        "PluginDir is not there",
        |bed| bed.set("PluginDir", "/nowhere/gpuos:/usr/lib"),
        &["PluginDir names /nowhere/gpuos", "slurm.conf:4"],
    ),
    down(
        "one of two folders is not there",
        |bed| {
            let own = bed.path("plugins");
            bed.set("PluginDir", &format!("{own}:/nowhere/slurm"));
        },
        &["PluginDir names /nowhere/slurm", "end without"],
    ),
    down(
        "PluginDir is a file",
        |bed| {
            let file = bed.path("gres.conf");
            bed.set("PluginDir", &file)
        },
        &["is no folder"],
    ),
    down(
        "select plugin missing",
        |bed| remove(bed, "plugins/select_gpuos.so"),
        &[
            "fail select_gpuos",
            "no select_gpuos.so in PluginDir",
            "slurmctld ends",
        ],
    ),
    down(
        "select plugin truncated",
        |bed| truncate(bed, "select_gpuos", 4096),
        &[
            "select_gpuos.so is cut off: it has 4096 bytes",
            "slurmctld ends",
        ],
    ),
    down(
        "select plugin empty",
        |bed| truncate(bed, "select_gpuos", 0),
        &["select_gpuos.so is empty"],
    ),
    down(
        "select plugin closed to SlurmUser",
        |bed| {
            bed.set("SlurmUser", "nobody");
            bed.mode(&bed.plugin("select_gpuos"), 0o600);
        },
        &[
            "cannot be read by SlurmUser nobody",
            "slurmctld ends",
            "chmod a+r",
        ],
    ),
    down(
        "folder of plugins closed to SlurmUser",
        |bed| {
            bed.set("SlurmUser", "nobody");
            bed.mode(&bed.path("plugins"), 0o700);
        },
        &[
            "fail select_gpuos",
            "cannot be read by SlurmUser nobody",
            "plugins is closed",
        ],
    ),
    up(
        "plugin closed to users",
        |bed| bed.mode(&bed.plugin("select_gpuos"), 0o600),
        &["cannot be read by all users, who load it with Slurm's commands"],
    ),
    down(
        "plugin of a newer glibc",
        |bed| bed.patch("select_gpuos", b"GLIBC_2.2.5", b"GLIBC_9.9.9"),
        &["needs GLIBC_9.9.9 of libc.so.6", "is glibc 2.", "older one"],
    ),
    down(
        "library that is not there",
        |bed| bed.patch("select_gpuos", b"libc.so.6", b"libx.so.9"),
        &["needs libx.so.9, which this machine does not have"],
    ),
    down(
        "plugin of another machine",
        |bed| {
            // e_machine: 183 is aarch64, 62 x86-64.
            let path = bed.plugin("select_gpuos");
            let mut bytes = fs::read(&path).unwrap();
            bytes[18] = if bytes[18] == 183 { 62 } else { 183 };
            fs::write(&path, bytes).unwrap();
        },
        &["select_gpuos.so is for", "and this machine is"],
    ),
    down(
        "a script in place of a plugin",
        |bed| bed.file("plugins/select_gpuos.so", "#!/bin/sh\n"),
        &["select_gpuos.so is not an ELF file"],
    ),
    down(
        "another library in place of a plugin",
        |bed| {
            fs::copy(bed.plugin("spank_gpuos"), bed.plugin("select_gpuos")).unwrap();
        },
        &["does not export plugin_id"],
    ),
    down(
        "plugin is a folder",
        |bed| {
            remove(bed, "plugins/select_gpuos.so");
            fs::create_dir(bed.plugin("select_gpuos")).unwrap();
        },
        &["select_gpuos.so is no file"],
    ),
    down(
        "plugin is a dangling link",
        |bed| {
            remove(bed, "plugins/select_gpuos.so");
            symlink("/nowhere/select_gpuos.so", bed.plugin("select_gpuos")).unwrap();
        },
        &["select_gpuos.so is a link that leads nowhere"],
    ),
    up(
        "plugin that all may write",
        |bed| bed.mode(&bed.plugin("select_gpuos"), 0o666),
        &["may be written by all users", "chmod o-w"],
    ),
    up(
        "plugins of two builds",
        |bed| bed.patch("spank_gpuos", b"@(#)gpuos 0.1.0", b"@(#)gpuos 0.0.9"),
        &["spank_gpuos is of gpuos 0.0.9, and others are of gpuos 0.1.0"],
    ),
    down(
        "Slurm's own plugin missing",
        |bed| remove(bed, "plugins/select_cons_tres.so"),
        &["select_cons_tres.so, which select/gpuos wraps"],
    ),
    down(
        "Slurm's own plugin of another release",
        |bed| bed.patch("select_cons_tres", &[5, 11, 24, 0], &[8, 5, 22, 0]),
        &["is of Slurm 22.05.8, and slurmctld is 24.11.5"],
    ),
    down(
        "job_submit plugin missing",
        |bed| remove(bed, "plugins/job_submit_gpuos.so"),
        &["no job_submit_gpuos.so in PluginDir", "slurmctld ends"],
    ),
    down(
        "job_submit plugin truncated",
        |bed| truncate(bed, "job_submit_gpuos", 100),
        &["job_submit_gpuos.so is cut off"],
    ),
    up(
        "spank plugin truncated",
        |bed| truncate(bed, "spank_gpuos", 2000),
        &["spank_gpuos.so is cut off"],
    ),
    down(
        "GRES plugin missing",
        |bed| {
            bed.set("GresTypes", "gpu,gpuos");
            remove(bed, "plugins/gres_gpuos.so");
        },
        &["no gres_gpuos.so in PluginDir", "slurmctld ends"],
    ),
];

pub const SLURM_CONF: &[Fault] = &[
    up(
        "stock selection",
        |bed| bed.set("SelectType", "select/cons_tres"),
        &["warn SelectType", "placed by stock Slurm", "slurm.conf:5"],
    ),
    down(
        "misspelt selection",
        |bed| bed.set("SelectType", "select/gpous"),
        &["select/gpous: there is no select_gpous.so in PluginDir"],
    ),
    down(
        "misspelt key",
        |bed| bed.add("slurm.conf", "JobSubmitPlugin=gpuos"),
        &[
            "jobsubmitplugin is no key of slurm.conf; jobsubmitplugins is",
            "slurm.conf:16",
        ],
    ),
    down(
        "included file missing",
        |bed| bed.add("slurm.conf", "include nodes.conf"),
        &["Include nodes.conf: there is no such file", "slurm.conf:16"],
    ),
    down(
        "a line that is none",
        |bed| bed.add("slurm.conf", "SelectType select/gpuos"),
        &["'SelectType select/gpuos' is not Key=Value"],
    ),
    down(
        "byte-order mark",
        |bed| {
            let text = fs::read_to_string(bed.path("slurm.conf")).unwrap();
            bed.file("slurm.conf", &format!("\u{feff}{text}"));
        },
        &["byte-order mark", "slurm.conf:1"],
    ),
    up(
        "a key twice",
        |bed| bed.add("slurm.conf", "gresTYPES=gpu,mps"),
        &["grestypes is set 2 times; Slurm takes the last: gpu,mps"],
    ),
    up(
        "slurm.conf that all may write",
        |bed| bed.mode(&bed.path("slurm.conf"), 0o666),
        &["slurm.conf may be written by all users"],
    ),
    down(
        "SlurmUser unknown",
        |bed| bed.set("SlurmUser", "slurmm"),
        &["knows no user slurmm"],
    ),
    up(
        "no job_submit",
        |bed| bed.set("JobSubmitPlugins", "lua"),
        &["job_submit/gpuos is not loaded"],
    ),
    down(
        "another job_submit missing",
        |bed| bed.set("JobSubmitPlugins", "luaa,gpuos"),
        &["there is no job_submit_luaa.so in PluginDir"],
    ),
    up(
        "gpuos before others",
        |bed| {
            fs::copy(bed.plugin("job_submit_gpuos"), bed.plugin("job_submit_lua")).unwrap();
            bed.set("JobSubmitPlugins", "gpuos,lua");
        },
        &[
            "gpuos stands before lua in JobSubmitPlugins",
            "JobSubmitPlugins=lua,gpuos",
        ],
    ),
    up(
        "GRES type unknown",
        |bed| {
            let text = fs::read_to_string(bed.path("slurm.conf")).unwrap();
            bed.file(
                "slurm.conf",
                &text.replace("Gres=gpu:h100:8", "Gres=gpu:h100:8,shard:32"),
            );
        },
        &[
            "Gres= has shard, and GresTypes (gpu) does not",
            "slurm.conf:14",
        ],
    ),
    up(
        "nothing confines jobs",
        |bed| bed.set("TaskPlugin", "task/affinity"),
        &["TaskPlugin (task/affinity) has no task/cgroup"],
    ),
    up(
        "devices not constrained",
        |bed| bed.file("cgroup.conf", "ConstrainCores=yes\nConstrainDevices=no\n"),
        &["ConstrainDevices is not yes", "cgroup.conf:2"],
    ),
    up(
        "processes get away",
        |bed| bed.set("ProctrackType", "proctrack/pgid"),
        &["ProctrackType=proctrack/pgid"],
    ),
    up(
        "GPUs not accounted",
        |bed| bed.set("AccountingStorageType", "accounting_storage/slurmdbd"),
        &["AccountingStorageTRES has no gres/gpu"],
    ),
    down(
        "folder of the log missing",
        |bed| bed.set("SlurmctldLogFile", "/nowhere/log/ctld.log"),
        &["SlurmctldLogFile: /nowhere/log cannot be used"],
    ),
    down(
        "state closed to SlurmUser",
        |bed| bed.set("SlurmUser", "nobody"),
        &["StateSaveLocation: SlurmUser nobody may not write into"],
    ),
    up(
        "edited and not restarted",
        |bed| {
            let text = fs::read_to_string(bed.path("slurm.conf")).unwrap();
            bed.file(
                "slurm.conf",
                &text.replace("GresTypes=gpu", "GresTypes=gpu,gpuos"),
            );
        },
        &[
            "GresTypes is gpu,gpuos in the file, and slurmctld runs with gpu",
            "slurm.conf:8",
        ],
    ),
    up(
        "another slurm.conf than slurmctld's",
        |bed| {
            bed.site.edit(
                "config.txt",
                "= Match",
                "= Different Ours=0x1 Slurmctld=0x2",
            )
        },
        &["slurmctld runs with another slurm.conf"],
    ),
];

pub const GRES: &[Fault] = &[
    up(
        "too few GPUs in gres.conf",
        |bed| bed.file("gres.conf", "Name=gpu Type=h100 File=/dev/nvidia[0-3]\n"),
        &[
            "n[1-4]: slurm.conf gives 8 GPUs, gres.conf 4",
            "gres.conf:1",
        ],
    ),
    up(
        "another type in gres.conf",
        |bed| bed.file("gres.conf", "Name=gpu Type=a100 File=/dev/nvidia[0-7]\n"),
        &["slurm.conf has GPUs of type h100, gres.conf of type a100"],
    ),
    up(
        "no gres.conf",
        |bed| remove(bed, "gres.conf"),
        &["there is no", "gres.conf: slurmd knows no device files"],
    ),
    up(
        "AutoDetect without its plugin",
        |bed| bed.file("gres.conf", "AutoDetect=nvml\n"),
        &["AutoDetect=nvml: there is no gpu_nvml.so"],
    ),
    up(
        "AutoDetect misspelt",
        |bed| bed.file("gres.conf", "AutoDetect=nvlm\n"),
        &["AutoDetect=nvlm is not known"],
    ),
    up(
        "GPU type that nobody knows",
        |bed| bed.site.edit("nodes.txt", "gpu:h100:8", "gpu:h1oo:8"),
        &["no node type is for GPUs of type h1oo"],
    ),
    up(
        "a node that slurmctld took out",
        |bed| {
            let nodes = fs::read_to_string(bed.path("nodes.txt")).unwrap();
            bed.file("nodes.txt", &nodes.replacen("State=MIXED+PLANNED", "State=IDLE+INVALID_REG", 1).replacen("   CfgTRES", "   Reason=gres/gpu count reported lower than configured (4 < 8) [slurm@now]\n   CfgTRES", 1));
        },
        &["what slurmd reports is not what slurm.conf says"],
    ),
];

pub const PLUGSTACK: &[Fault] = &[
    up(
        "no line",
        |bed| bed.file("plugstack.conf", "# optional spank_gpuos.so\n"),
        &["no line for spank_gpuos.so", "add to"],
    ),
    up(
        "misspelt file",
        |bed| bed.file("plugstack.conf", "optional /usr/lib/gpuos/spank_gpuso.so\n"),
        &[
            "spank_gpuso.so does not exist; is spank_gpuos.so meant?",
            "plugstack.conf:1",
        ],
    ),
    up(
        "required and missing",
        |bed| bed.file("plugstack.conf", "\nrequired /nowhere/spank_gpuos.so\n"),
        &["no job can start", "plugstack.conf:2"],
    ),
    up(
        "misspelt word",
        |bed| bed.file("plugstack.conf", "optinal spank_gpuos.so\n"),
        &["not with optinal"],
    ),
    up(
        "included file missing",
        |bed| {
            bed.file(
                "plugstack.conf",
                "include /nowhere/gpuos.conf\noptional spank_gpuos.so\n",
            )
        },
        &["include /nowhere/gpuos.conf: no file is there"],
    ),
    up(
        "loaded twice",
        |bed| {
            bed.file(
                "plugstack.conf",
                "optional spank_gpuos.so\noptional spank_gpuos.so\n",
            )
        },
        &["is loaded twice", "plugstack.conf:1, "],
    ),
    up(
        "PlugStackConfig misspelt",
        |bed| bed.set("PlugStackConfig", "/nowhere/plugstack.conf"),
        &["PlugStackConfig names /nowhere/plugstack.conf"],
    ),
    up(
        "no plugstack.conf",
        |bed| remove(bed, "plugstack.conf"),
        &["no line for spank_gpuos.so"],
    ),
];
