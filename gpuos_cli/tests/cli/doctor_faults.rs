//! Faults planted in a sound installation: `gpuos doctor` has to name each, with what mends it and exit code 1.

use std::fs;
use std::os::unix::fs::symlink;

use crate::doctor_bed::Bed;

/// A fault, and the words that have to stand in one finding.
struct Fault {
    name: &'static str,
    /// Whether slurmctld is down, as this fault would leave it.
    down: bool,
    plant: fn(&Bed),
    words: &'static [&'static str],
}

const fn up(name: &'static str, plant: fn(&Bed), words: &'static [&'static str]) -> Fault {
    Fault {
        name,
        down: false,
        plant,
        words,
    }
}

const fn down(name: &'static str, plant: fn(&Bed), words: &'static [&'static str]) -> Fault {
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

fn remove(bed: &Bed, name: &str) {
    fs::remove_file(bed.path(name)).unwrap();
}

const PLUGIN_FILES: &[Fault] = &[
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

const SLURM_CONF: &[Fault] = &[
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

const GRES: &[Fault] = &[
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

const PLUGSTACK: &[Fault] = &[
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

const GPUOS_TOML: &[Fault] = &[
    up(
        "not TOML",
        |bed| bed.file("gpuos.toml", "[slurm\n"),
        &["gpuos.toml:1:"],
    ),
    down(
        "not TOML, and slurmctld away",
        |bed| bed.file("gpuos.toml", "[policy]\nplacement = 3\n"),
        &["gpuos.toml:2:"],
    ),
    up(
        "unknown key",
        |bed| bed.file("gpuos.toml", "[slurm]\nsteerr = true\n"),
        &["there is no key `steerr`"],
    ),
    up(
        "unknown level in [policy]",
        |bed| bed.file("gpuos.toml", "[policy]\ntopology = \"pod\"\n"),
        &["this cluster has no level pod", "gpuos.toml:2"],
    ),
    up(
        "unknown level in [[policy.rule]]",
        |bed| {
            bed.file(
                "gpuos.toml",
                "[[policy.rule]]\npartition = \"main\"\ntopology = \"rack\"\n",
            )
        },
        &["this cluster has no level rack", "gpuos.toml:3"],
    ),
    up(
        "unknown partition in [[policy.rule]]",
        |bed| {
            bed.file(
                "gpuos.toml",
                "[[policy.rule]]\npartition = \"mian\"\nplacement = \"pack\"\n",
            )
        },
        &["partition mian is not in slurm.conf"],
    ),
    up(
        "unknown node",
        |bed| {
            bed.file(
                "gpuos.toml",
                "[[nodes]]\nmatch = \"n[1-9]\"\ntype = \"dgx-h100\"\n",
            )
        },
        &["node n5 is not in slurm.conf"],
    ),
    up(
        "node type of another GPU",
        |bed| {
            bed.file(
                "gpuos.toml",
                "[[nodes]]\nmatch = \"n[1-2]\"\ntype = \"dgx-a100\"\n",
            )
        },
        &["node n1 has GPUs of type h100 in Slurm (Gres=), and node type dgx-a100 is for a100"],
    ),
    down(
        "node type of another GPU, and slurmctld away",
        |bed| {
            bed.file(
                "gpuos.toml",
                "[[nodes]]\nmatch = \"n[1-2]\"\ntype = \"dgx-a100\"\n",
            )
        },
        &["node type dgx-a100 is for a100"],
    ),
    up(
        "node type with another number of GPUs",
        |bed| {
            bed.file("gpuos.toml", "[[node-type]]\nname = \"half\"\nbase = \"dgx-h100\"\ngpus = 4\nnics = []\n[[nodes]]\nmatch = \"n1\"\ntype = \"half\"\n")
        },
        &["gpuos.toml"],
    ),
    up(
        "node type that is none",
        |bed| {
            bed.file(
                "gpuos.toml",
                "[[nodes]]\nmatch = \"n1\"\ntype = \"dgx-h1000\"\n",
            )
        },
        &["dgx-h1000"],
    ),
    up(
        "wrong folder",
        |bed| bed.file("gpuos/gpuos.toml", ""),
        &["gpuos/gpuos.toml is not read: gpuos.toml belongs beside slurm.conf"],
    ),
    up(
        "nearly the name",
        |bed| bed.file("gpuos.tml", ""),
        &["gpuos.tml is not read"],
    ),
    up(
        "another ending",
        |bed| bed.file("gpuos.conf", ""),
        &["gpuos.conf is not read"],
    ),
    up(
        "edited and not read again",
        |bed| {
            bed.log(&format!(
                "[3] select/gpuos: {} is read, checksum {:016x}\n",
                bed.path("gpuos.toml"),
                7
            ));
            bed.file("gpuos.toml", "[policy]\nplacement = \"pack\"\n");
        },
        &[
            "gpuos.toml was edited since slurmctld read it",
            "scontrol reconfigure",
        ],
    ),
    up(
        "written after the start",
        |bed| {
            bed.log(&format!(
                "[3] select/gpuos: there is no {}: every key has its default\n",
                bed.path("gpuos.toml")
            ));
            bed.file("gpuos.toml", "");
        },
        &["gpuos.toml was written since slurmctld looked for it"],
    ),
    up(
        "gone since",
        |bed| {
            bed.log(&format!(
                "[3] select/gpuos: {} is read, checksum {:016x}\n",
                bed.path("gpuos.toml"),
                7
            ))
        },
        &["gpuos.toml is gone since slurmctld read it"],
    ),
    up(
        "slurmctld reads another one",
        |bed| {
            bed.log("[3] select/gpuos: /opt/site/gpuos.toml is read, checksum cbf29ce484222325\n");
            bed.file("gpuos.toml", "");
        },
        &["slurmctld read /opt/site/gpuos.toml"],
    ),
    up(
        "switched off",
        |bed| bed.file("gpuos.toml", "[slurm]\nsteer = false\n"),
        &["steer = false: gpuos places no job"],
    ),
    up(
        "all may write it",
        |bed| {
            bed.file("gpuos.toml", "");
            bed.mode(&bed.path("gpuos.toml"), 0o666);
        },
        &["gpuos.toml may be written by all users"],
    ),
    up(
        "SlurmUser may not read it",
        |bed| {
            bed.set("SlurmUser", "nobody");
            bed.file("gpuos.toml", "");
            bed.mode(&bed.path("gpuos.toml"), 0o600);
        },
        &["gpuos.toml cannot be read by nobody"],
    ),
    up(
        "not UTF-8",
        |bed| fs::write(bed.path("gpuos.toml"), b"# caf\xe9\n").unwrap(),
        &["not UTF-8 text"],
    ),
    up(
        "byte-order mark in it",
        |bed| fs::write(bed.path("gpuos.toml"), b"\xef\xbb\xbf[slurm]\n").unwrap(),
        &["gpuos.toml starts with a byte-order mark"],
    ),
    up(
        "a folder",
        |bed| fs::create_dir(bed.path("gpuos.toml")).unwrap(),
        &["gpuos.toml is a folder"],
    ),
    up(
        "a dangling link",
        |bed| symlink("/nowhere", bed.path("gpuos.toml")).unwrap(),
        &["gpuos.toml is a link that leads nowhere"],
    ),
    up(
        "layouts of random bytes",
        |bed| fs::write(bed.path("gpuos-layouts.tsv"), b"\0\x01\xff\n").unwrap(),
        &["gpuos-layouts.tsv is no text"],
    ),
    up(
        "layouts without tabs",
        |bed| bed.file("gpuos-layouts.tsv", "job_record magic 0 4\n"),
        &["gpuos-layouts.tsv:1: a row has seven columns"],
    ),
    up(
        "layouts are a folder",
        |bed| fs::create_dir(bed.path("gpuos-layouts.tsv")).unwrap(),
        &["gpuos-layouts.tsv is a folder"],
    ),
    up(
        "layouts are a dangling link",
        |bed| symlink("/nowhere", bed.path("gpuos-layouts.tsv")).unwrap(),
        &["gpuos-layouts.tsv is a link that leads nowhere"],
    ),
    up(
        "a switch without nodes",
        |bed| {
            bed.file("topology.conf", "SwitchName=leaf1 Nodes=n[1-4]\nSwitchName=leaf2 Nodes=x[1-2]\nSwitchName=spine Switches=leaf[1-2]\n")
        },
        &["names nodes that slurmctld does not have: x[1-2]"],
    ),
    up(
        "nodes in no switch",
        |bed| bed.file("topology.conf", "SwitchName=leaf1 Nodes=n[1-3]\n"),
        &["in no", "n4"],
    ),
    up(
        "a pool that Slurm does not count",
        |bed| {
            bed.file("gpuos.toml", "[[mig.board]]\nname = \"a30\"\nprofiles = [{ id = 0, name = \"4g.24gb\", compute = 4, memory-mib = 24000, most = 1, size = 4, starts = [0] }]\n[[mig.pool]]\nnodes = \"n1\"\ngpus = \"0-1\"\nboard = \"a30\"\n")
        },
        &["GresTypes (gpu) has no gpuos"],
    ),
];

const DAEMONS: &[Fault] = &[
    down(
        "slurmctld ended with a fatal line",
        |bed| {
            bed.file("log/ctld.log", "[1] slurmctld version 24.11.5 started on cluster cap\n[2] error: plugin_load_from_file: dlopen(/x/select_gpuos.so): /x/select_gpuos.so: file too short\n[3] fatal: Can't find plugin for select/gpuos\n")
        },
        &[
            "slurmctld does not answer",
            "`[3] fatal: Can't find plugin for select/gpuos`",
            "file too short",
            "connect failure",
        ],
    ),
    down(
        "slurmctld is not started",
        |_| (),
        &["slurmctld does not answer", "start slurmctld"],
    ),
    up(
        "select/gpuos passes through",
        |bed| {
            bed.log("[9] error: select/gpuos: passing through to cons_tres, jobs are scheduled as by stock Slurm: the layout table does not fit\n")
        },
        &[
            "select/gpuos does not place jobs (since 9): passing through",
            "does not fit",
        ],
    ),
    up(
        "no line of select/gpuos",
        |bed| {
            bed.file(
                "log/ctld.log",
                "[1] slurmctld version 24.11.5 started on cluster cap\n",
            )
        },
        &["no line of select/gpuos"],
    ),
    up(
        "another release",
        |bed| bed.set("SLURM_VERSION", "99.11.5"),
        &["Slurm 99.11.5 is in no layout table"],
    ),
    up(
        "munged does not sign",
        |bed| {
            bed.site.program(
                "munge",
                "#!/bin/sh\necho 'munge: Error: Failed to access socket' >&2\nexit 6\n",
            )
        },
        &["munged does not sign: munge: Error: Failed to access socket"],
    ),
    up(
        "a second slurmctld is down",
        |bed| {
            bed.site.edit(
                "config.txt",
                "Slurmctld(primary) at host is UP",
                "Slurmctld(primary) at host is UP\nSlurmctld(backup) at b is DOWN",
            )
        },
        &["Slurmctld(backup) at b is DOWN"],
    ),
    up(
        "few jobs are placed as planned",
        |bed| bed.log("[3] select/gpuos: jobs steered: 40 of 400\n"),
        &["40 of 400 jobs were placed as planned"],
    ),
];

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
    assert!(
        missed.is_empty(),
        "{} missed: {}",
        missed.len(),
        missed.join("\n")
    );
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
    let sum = gpuos_core::fnv::fnv(toml.bytes());
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
