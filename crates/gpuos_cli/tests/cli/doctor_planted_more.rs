//! Faults of gpuos' own files, and of daemons: what is planted, and the words that have to be said.

use std::fs;
use std::os::unix::fs::symlink;

use crate::doctor_planted::{Fault, down, up};

pub const GPUOS_TOML: &[Fault] = &[
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

pub const DAEMONS: &[Fault] = &[
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
            "select/gpuos does not place jobs: passing through",
            "(since 9)",
            "does not fit",
        ],
    ),
    up(
        "slurmctld may not read its own memory",
        |bed| {
            bed.log("[9] error: select/gpuos: passing through to cons_tres, jobs are scheduled as by stock Slurm: this process may not read its own memory safely (process_vm_readv: not tried, as a seccomp filter is in force; a pipe: Operation not permitted (os error 1)). A seccomp filter\n")
        },
        &[
            "select/gpuos does not place jobs: passing through",
            "a pipe: Operation not permitted",
            "SystemCallFilter slurmctld",
            "then restart slurmctld",
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
