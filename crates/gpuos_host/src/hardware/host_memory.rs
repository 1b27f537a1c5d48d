//! How the host's memory is doing, as the kernel tells it: what is there and free, of the machine and of each NUMA node, and how much time is
//! lost waiting for some.

use std::fs;
use std::path::Path;

/// NUMA nodes that are looked at.
const MOST: u32 = 64;

/// Memory in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// There is.
    pub total: u64,
    /// Could be had without swapping, by the kernel's guess; of a NUMA node what is free or holds a file's unchanged pages.
    pub available: u64,
}

/// One look.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostMemory {
    /// The machine's. `None`: the kernel does not say it.
    pub all: Option<Room>,
    /// Each NUMA node's, with its number; none where there is one or none.
    pub numa: Vec<(u16, Room)>,
    /// Bytes that the kernel has given away and that stand in none of its sums: those of drivers, and little else. NVIDIA's driver takes host
    /// memory for addresses of a GPU so, and no control group is charged for it (seen: docs/results/gpu.md). 0 where the kernel does not say.
    pub by_drivers: u64,
    /// Time in which all that runs waited for memory, of 1000, in the last ten seconds; `None`: a kernel without PSI.
    pub stalled: Option<u32>,
}

impl HostMemory {
    /// Reads it below a `/proc` and a `/sys`.
    pub fn read(proc: &Path, sysfs: &Path) -> HostMemory {
        let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let nodes = sysfs.join("devices/system/node");
        let mut numa = Vec::new();
        for number in 0..MOST {
            let text = text(&nodes.join(format!("node{number}/meminfo")));
            if let (Some(room), Ok(number)) = (numa_room(&text), u16::try_from(number)) {
                numa.push((number, room));
            }
        }
        if numa.len() < 2 {
            numa.clear();
        }
        let meminfo = text(&proc.join("meminfo"));
        HostMemory {
            all: room(&meminfo),
            numa,
            by_drivers: by_drivers(&meminfo).unwrap_or(0),
            stalled: stalled(&text(&proc.join("pressure/memory"))),
        }
    }

    /// The tightest of the machine and of these NUMA nodes, on whose memory GPUs depend.
    pub fn tightest(&self, of: &[u16]) -> Option<Room> {
        let nodes = self.numa.iter().filter(|(node, _)| of.contains(node));
        let rooms = nodes.map(|(_, room)| *room).chain(self.all);
        // Shares are compared, for a node is a part of the machine.
        rooms.min_by_key(|room| {
            u128::from(room.available) * 1_000_000 / u128::from(room.total.max(1))
        })
    }
}

/// The NUMA node of a PCI device, below a `/sys`; `None`: the kernel knows none.
pub fn numa_of(sysfs: &Path, pci: &str) -> Option<u16> {
    // NVML writes domains in eight digits, the kernel in four.
    let pci = pci.to_ascii_lowercase();
    let short = pci.strip_prefix("0000").filter(|_| pci.len() == 16);
    let devices = sysfs.join("bus/pci/devices");
    let names = [Some(pci.as_str()), short];
    let mut texts = names.into_iter().flatten().filter_map(|name| {
        // An address is digits, colons and a point.
        let safe = name
            .bytes()
            .all(|b| b.is_ascii_hexdigit() || b == b':' || b == b'.');
        fs::read_to_string(devices.join(name).join("numa_node"))
            .ok()
            .filter(|_| safe)
    });
    texts.next()?.trim().parse().ok()
}

/// The bytes of a line `KEY: NUMBER kB`, wherever in the line the key stands.
fn bytes(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (before, value) = line.split_once(':')?;
        let named = before.split_whitespace().next_back() == Some(key);
        let kib = value.trim().strip_suffix(" kB").filter(|_| named)?;
        kib.trim().parse::<u64>().ok()?.checked_mul(1024)
    })
}

fn room(text: &str) -> Option<Room> {
    let total = bytes(text, "MemTotal").filter(|total| *total > 0)?;
    Some(Room {
        total,
        available: bytes(text, "MemAvailable")?.min(total),
    })
}

/// What stands in no sum of the kernel's. `None`: the text has not the sums.
fn by_drivers(text: &str) -> Option<u64> {
    let of = |key| bytes(text, key).unwrap_or(0);
    let told = ["MemFree", "Cached", "AnonPages", "Slab"].map(|key| bytes(text, key));
    let sums: u64 = told.into_iter().sum::<Option<u64>>()?;
    let others = [
        "Buffers",
        "SwapCached",
        "KernelStack",
        "PageTables",
        "SecPageTables",
        "VmallocUsed",
        "Percpu",
        "HardwareCorrupted",
        "Hugetlb",
    ];
    let others: u64 = others.into_iter().map(of).sum();
    Some(bytes(text, "MemTotal")?.saturating_sub(sums.saturating_add(others)))
}

/// A NUMA node's. The kernel has no guess of it: free pages, those of files that are no changes, and half of what it keeps for itself and
/// can give back.
fn numa_room(text: &str) -> Option<Room> {
    let total = bytes(text, "MemTotal").filter(|total| *total > 0)?;
    let of = |key| bytes(text, key).unwrap_or(0);
    let files = of("Active(file)").saturating_add(of("Inactive(file)"));
    let files = files.saturating_sub(of("Dirty"));
    let all = of("MemFree")
        .saturating_add(files)
        .saturating_add(of("SReclaimable") / 2);
    Some(Room {
        total,
        available: all.min(total),
    })
}

/// `full avg10` of a text of PSI, of 1000.
pub fn stalled(text: &str) -> Option<u32> {
    let line = text.lines().find_map(|line| line.strip_prefix("full "))?;
    let value = line
        .split(' ')
        .find_map(|word| word.strip_prefix("avg10="))?;
    let percent: f64 = value.parse().ok()?;
    // More than all of the time is none.
    (0.0..=100.0)
        .contains(&percent)
        .then_some((percent * 10.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_as_the_kernel_writes_it() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, sys) = (folder.path().join("proc"), folder.path().join("sys"));
        assert_eq!(HostMemory::read(&proc, &sys), HostMemory::default());
        let put = |path: std::path::PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put(
            proc.join("meminfo"),
            "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:   600 kB\n",
        );
        put(
            proc.join("pressure/memory"),
            "some avg10=40.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=12.34 avg60=0.00 avg300=0.00 total=5\n",
        );
        for (node, free) in [(0, 300), (1, 20)] {
            let text = format!(
                "Node {node} MemTotal:  500 kB\nNode {node} MemFree: {free} kB\nNode {node} Active(file): 10 kB\n\
                 Node {node} Inactive(file): 10 kB\nNode {node} Dirty: 5 kB\nNode {node} SReclaimable: 8 kB\n"
            );
            put(
                sys.join(format!("devices/system/node/node{node}/meminfo")),
                &text,
            );
        }
        put(sys.join("bus/pci/devices/0000:1b:00.0/numa_node"), "1\n");
        let told = HostMemory::read(&proc, &sys);
        let kib = |total: u64, available: u64| Room {
            total: total << 10,
            available: available << 10,
        };
        assert_eq!(told.all, Some(kib(1000, 600)));
        assert_eq!(told.stalled, Some(123));
        assert_eq!(told.by_drivers, 0, "it has no sums");
        assert_eq!(told.numa, [(0, kib(500, 319)), (1, kib(500, 39))]);
        assert_eq!(told.tightest(&[]), Some(kib(1000, 600)));
        assert_eq!(told.tightest(&[0]), Some(kib(1000, 600)));
        assert_eq!(told.tightest(&[0, 1]), Some(kib(500, 39)));
        assert_eq!(numa_of(&sys, "00000000:1B:00.0"), Some(1));
        assert_eq!(numa_of(&sys, "00000000:1C:00.0"), None);
        assert_eq!(numa_of(&sys, "../../numa"), None);
    }

    #[test]
    fn what_stands_in_no_sum_is_of_drivers() {
        let all = "MemTotal: 1000 kB\nMemFree: 300 kB\nBuffers: 10 kB\nCached: 90 kB\nAnonPages: 200 kB\nMapped: 50 kB\nShmem: 20 kB\n\
                   Slab: 40 kB\nSReclaimable: 30 kB\nKernelStack: 5 kB\nPageTables: 15 kB\nVmallocUsed: 25 kB\nPercpu: 5 kB\nHugetlb: 60 kB\n";
        assert_eq!(by_drivers(all), Some(250 << 10));
        assert_eq!(
            by_drivers(&all.replace("AnonPages: 200", "AnonPages: 600")),
            Some(0)
        );
        assert_eq!(by_drivers(&all.replace("Slab:", "Slob:")), None);
    }

    #[test]
    fn what_is_no_pressure_is_not_taken_for_some() {
        for text in [
            "",
            "some avg10=40.00",
            "full avg10=x",
            "full avg10=101.00",
            "full avg10=-1",
            "full avg60=4",
            "full avg10=NaN",
        ] {
            assert_eq!(stalled(text), None, "{text}");
        }
    }
}
