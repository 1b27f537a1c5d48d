//! Control groups, and the kernel's programs for devices.

use std::io::Write as _;

use gpuos_host::hardware::device_programs::DevicePrograms;

use super::{LEGACY, seen, silent, sound};

#[test]
fn a_version_that_slurm_cannot_use_is_named() {
    let memory = |boot: &str| {
        sound()
            .file("/proc/cmdline", boot)
            .file("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids\n")
    };
    let account = || {
        sound().set(
            "ClusterName",
            "JobAcctGatherType=jobacct_gather/cgroup\nClusterName",
        )
    };
    seen(vec![
        (
            "hybrid",
            sound().hybrid(),
            &["warn cgroup version", "(hybrid)", "version 2 (/sys/fs/cgroup/unified)", "boot with `systemd.unified_cgroup_hierarchy=1", "CgroupPlugin=cgroup/v1"],
        ),
        (
            "hybrid by the boot",
            sound().hybrid().file("/proc/cmdline", "ro systemd.unified_cgroup_hierarchy=0\n"),
            &["take systemd.unified_cgroup_hierarchy=0 out of the boot parameters"],
        ),
        (
            "hybrid and cgroup/v2",
            sound().hybrid().groups("# x\nCgroupPlugin=cgroup/v2\n"),
            &["fail cgroup version", "takes cgroup/v2", "(hybrid)", "cgroup.conf:2", "slurmd ends", "cgroup_no_v1=all"],
        ),
        (
            "hybrid as systemd 232 had it",
            sound().mounts("tmpfs /sys/fs/cgroup tmpfs ro 0 0\ncgroup2 /sys/fs/cgroup/systemd cgroup2 rw 0 0\n\
                cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\ncgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n"),
            &["fail cgroup version", "CgroupPlugin=autodetect takes cgroup/v2"],
        ),
        (
            "a hierarchy of version 1 that somebody mounts",
            sound().file("/proc/self/cgroup", "8:net_cls:/\n0::/\n"),
            &["fail cgroup version", "(hybrid)", "grep -v ^0: /proc/self/cgroup"],
        ),
        (
            "version 1 alone and cgroup/v2",
            sound().mounts(LEGACY).groups("CgroupPlugin=cgroup/v2\n"),
            &["fail cgroup version", "version 1 alone (legacy)", "or set CgroupPlugin=cgroup/v1"],
        ),
        (
            "version 2 alone and cgroup/v1",
            sound().groups("CgroupPlugin=cgroup/v1\n"),
            &["fail cgroup version", "version 2 alone", "set CgroupPlugin=autodetect", "task/cgroup and proctrack/cgroup"],
        ),
        (
            "places that Slurm does not know",
            sound().mounts("tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n"),
            &["fail cgroup version", "autodetect cannot tell"],
        ),
        (
            "disabled and used",
            sound().groups("CgroupPlugin=disabled\n"),
            &["fail cgroup version", "disabled, and slurm.conf has task/cgroup"],
        ),
        (
            "a Slurm without cgroup/v2",
            sound().without("/lib/plugins/cgroup_v2.so"),
            &["fail cgroup version", "no cgroup_v2.so in PluginDir (/lib/plugins)", "linux/bpf.h"],
        ),
        (
            "memory disabled at boot",
            memory("ro cgroup_disable=memory\n"),
            &["fail cgroup version", "ConstrainRAMSpace=yes needs the controller memory", "booted with cgroup_disable=memory", "cgroup_enable=memory", "cgroup.conf:3"],
        ),
        (
            "memory not built",
            memory("ro\n"),
            &["fail cgroup version", "CONFIG_MEMCG"],
        ),
        (
            "cores without cpuset",
            sound().file("/sys/fs/cgroup/cgroup.controllers", "cpu io memory pids\n"),
            &["ConstrainCores=yes needs the controller cpuset", "CONFIG_CPUSETS"],
        ),
        (
            "cores of version 1",
            sound().mounts(&LEGACY.replace("cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n", "")),
            &["ConstrainCores=yes needs the controller cpuset", "mount it"],
        ),
        (
            "accounting without cpu",
            account().file("/sys/fs/cgroup/cgroup.controllers", "cpuset memory\n"),
            &["jobacct_gather/cgroup needs the controller cpu", "slurm.conf:1"],
        ),
        (
            "controllers not handed down",
            sound().file("/sys/fs/cgroup/system.slice/slurmstepd.scope/cgroup.controllers", "cpuset cpu pids\n"),
            &["warn cgroup version", "memory, which is not on for the groups of jobs", "EnableControllers=yes"],
        ),
    ]);
    // Version 1 works, so it is no finding; it is named with what takes its place.
    for (release, words) in [
        ("22.05.8", "uses cgroup/v1: version 1 (name=systemd"),
        ("26.05.5", "deprecated"),
    ] {
        let (found, all) = sound().mounts(LEGACY).release(release).doctor();
        assert_eq!(found, [""; 0], "{release}");
        let note = all.iter().find(|one| {
            one.starts_with("note cgroup version: this host has control groups of version 1 alone")
        });
        let note = note.unwrap_or_else(|| panic!("{all:#?}"));
        assert!(
            note.contains(words) && note.contains("boot with `systemd.unified"),
            "{note}"
        );
    }
}

#[test]
fn a_kernel_without_programs_for_devices_is_named() {
    let config = "/boot/config-6.12.0-arm64";
    let unknown = || sound().kernel(DevicePrograms::Unknown);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(b"CONFIG_BPF_SYSCALL=y\n").unwrap();
    let packed = packed.finish().unwrap();
    let mut gz = unknown();
    gz.machine.files.insert("/proc/config.gz".into(), packed);
    seen(vec![
        (
            "the kernel says so",
            sound().kernel(DevicePrograms::No),
            &[
                "fail devices",
                "without programs for devices",
                "may open all GPUs of the node",
                "cgroup.conf:1",
                "CONFIG_CGROUP_BPF=y",
            ],
        ),
        (
            "the same with a Slurm that looks",
            sound().kernel(DevicePrograms::No).release("26.05.5"),
            &["fail devices", "no step with GPUs starts"],
        ),
        (
            "its options say so",
            unknown().file(
                config,
                "CONFIG_BPF_SYSCALL=y\n# CONFIG_CGROUP_BPF is not set\n",
            ),
            &[
                "fail devices",
                "(CONFIG_CGROUP_BPF)",
                "/boot/config-6.12.0-arm64",
            ],
        ),
        (
            "options with the modules",
            unknown().file("/lib/modules/6.12.0-arm64/config", "CONFIG_CGROUP_BPF=y\n"),
            &["fail devices", "(CONFIG_BPF_SYSCALL)"],
        ),
        (
            "options of the running kernel",
            gz,
            &["fail devices", "(CONFIG_CGROUP_BPF)", "/proc/config.gz"],
        ),
    ]);
    let well = "CONFIG_BPF_SYSCALL=y\nCONFIG_CGROUP_BPF=y\n";
    let (found, all) = unknown().file(config, well).doctor();
    assert_eq!(found, [""; 0]);
    assert!(
        all.iter()
            .any(|one| one.starts_with("ok devices") && one.contains(config)),
        "{all:#?}"
    );
    // What the kernel says is more than what a file says.
    silent(vec![("a file of another kernel", sound().file(config, ""))]);
}
