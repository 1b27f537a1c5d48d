//! Which control groups the kernel of this host has.

use std::path::Path;

use gpuos_host::Machine;

use super::conf::MOUNTED;

/// Versions of control groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// Version 1 alone: systemd's "legacy".
    One,
    /// Version 2 alone: "unified".
    Two,
    /// Both: "hybrid".
    Both,
}

/// What is mounted below `/sys/fs/cgroup`, and of which version this process has groups.
pub struct Host {
    /// Controllers of version 1 that are mounted.
    one: Vec<String>,
    /// Where version 2 is mounted.
    two: Vec<String>,
    /// What each place there is: mount point and file system, the uppermost last.
    places: Vec<(String, String)>,
    /// Whether the kernel counts a group of version 1 for this process, wherever it is mounted.
    grouped: bool,
}

impl Host {
    /// Reads `/proc`. What cannot be read is not there.
    pub fn read(machine: &dyn Machine) -> Host {
        let text = |path: &str| {
            let bytes = machine.read(Path::new(path)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let mut host = Host {
            one: Vec::new(),
            two: Vec::new(),
            places: Vec::new(),
            grouped: text("/proc/self/cgroup")
                .lines()
                .any(|line| !line.is_empty() && !line.starts_with("0:")),
        };
        for line in text("/proc/self/mounts").lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, at, kind, options, ..] = fields[..] else {
                continue;
            };
            if !Path::new(at).starts_with(MOUNTED) {
                continue;
            }
            host.places.push((at.into(), kind.into()));
            match kind {
                "cgroup2" => host.two.push(at.into()),
                // Its options are those of all mounts, then its controllers.
                "cgroup" => {
                    let own = options.split(',').filter(|option| !is_of_all(option));
                    host.one.extend(own.map(str::to_owned));
                }
                _ => {}
            }
        }
        host
    }

    /// `None`: no control groups are mounted, as in some containers.
    pub fn version(&self) -> Option<Version> {
        let one = !self.one.is_empty() || self.grouped;
        match (one, !self.two.is_empty()) {
            (true, true) => Some(Version::Both),
            (false, true) => Some(Version::Two),
            (true, false) if !self.one.is_empty() => Some(Version::One),
            _ => None,
        }
    }

    /// `version 1 (cpuset,memory) and version 2 (/sys/fs/cgroup/unified)`.
    pub fn words(&self) -> String {
        let one = match self.one.is_empty() {
            true => "version 1".to_string(),
            false => format!("version 1 ({})", self.one.join(",")),
        };
        let two = format!("version 2 ({})", self.two.join(","));
        match self.version() {
            Some(Version::Both) => format!("{one} and {two}"),
            Some(Version::Two) => two,
            _ => one,
        }
    }

    /// Whether a controller of version 1 is mounted.
    pub fn mounted(&self, controller: &str) -> bool {
        self.one.iter().any(|one| one == controller)
    }

    /// The file system at a place below `/sys/fs/cgroup`.
    fn kind(&self, below: &str) -> Option<&str> {
        let path = format!("{MOUNTED}{below}");
        let at = self.places.iter().rfind(|(at, _)| *at == path);
        at.map(|(_, kind)| kind.as_str())
    }

    /// What Slurm's `CgroupPlugin=autodetect` takes here: it looks at the same three places.
    pub fn detected(&self) -> Option<&'static str> {
        match (self.kind(""), self.kind("/systemd")) {
            (Some("cgroup2"), _) => Some("cgroup/v2"),
            (Some("tmpfs"), Some("cgroup")) => Some("cgroup/v1"),
            (Some("tmpfs"), Some("cgroup2")) if self.kind("/unified").is_some() => {
                Some("cgroup/v2")
            }
            _ => None,
        }
    }
}

/// Options that any mount may have, and those of version 1 that name no controller.
fn is_of_all(option: &str) -> bool {
    const OF_ALL: &[&str] = &[
        "rw",
        "ro",
        "nosuid",
        "nodev",
        "noexec",
        "noatime",
        "nodiratime",
        "relatime",
        "seclabel",
        "xattr",
        "clone_children",
        "noprefix",
    ];
    OF_ALL.contains(&option) || option.starts_with("release_agent=")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuos_host::Recorded;

    fn host(mounts: &str, groups: &str) -> Host {
        let machine = Recorded::default()
            .file("/proc/self/mounts", mounts)
            .file("/proc/self/cgroup", groups);
        Host::read(&machine)
    }

    #[test]
    fn a_host_is_what_is_mounted() {
        let unified = host(
            "sysfs /sys sysfs rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nsdelegate 0 0\n",
            "0::/user.slice\n",
        );
        assert_eq!(unified.version(), Some(Version::Two));
        assert_eq!(unified.detected(), Some("cgroup/v2"));
        let v1 = "tmpfs /sys/fs/cgroup tmpfs ro 0 0\n\
                  cgroup /sys/fs/cgroup/systemd cgroup rw,nosuid,xattr,release_agent=/x,name=systemd 0 0\n\
                  cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n";
        let legacy = host(v1, "4:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n");
        assert_eq!(legacy.version(), Some(Version::One));
        assert_eq!(legacy.detected(), Some("cgroup/v1"));
        assert_eq!(legacy.words(), "version 1 (name=systemd,cpu,cpuacct)");
        assert!(legacy.mounted("cpuacct") && !legacy.mounted("memory"));
        let both = format!("{v1}cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n");
        let both = host(&both, "1:name=systemd:/\n0::/\n");
        assert_eq!(both.version(), Some(Version::Both));
        assert_eq!(both.detected(), Some("cgroup/v1"));
        // systemd 232 had version 2 where others have its own hierarchy of version 1.
        let old = "tmpfs /sys/fs/cgroup tmpfs ro 0 0\ncgroup2 /sys/fs/cgroup/systemd cgroup2 rw 0 0\n\
                   cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(host(old, "0::/\n").detected(), Some("cgroup/v2"));
    }

    #[test]
    fn a_hierarchy_that_is_mounted_elsewhere_counts_as_for_slurm() {
        let host = host(
            "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\ncgroup /mnt/net cgroup rw,net_cls 0 0\n",
            "8:net_cls:/\n0::/\n",
        );
        assert_eq!(host.version(), Some(Version::Both));
        assert_eq!(host.words(), "version 1 and version 2 (/sys/fs/cgroup)");
    }

    #[test]
    fn where_nothing_is_mounted_nothing_is_known() {
        assert_eq!(host("", "0::/\n").version(), None);
        assert_eq!(host("", "3:cpu:/\n0::/\n").version(), None);
        // No systemd, and not its places.
        let plain =
            "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ntmpfs /sys/fs/cgroup tmpfs rw 0 0\n";
        assert_eq!(host(plain, "1:cpu:/\n").detected(), None);
    }
}
