//! Where labs live, and the record that each keeps of itself.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::cgroup;
use crate::error::{Context, LabError};
use crate::process::{self, PREFIX, Stat};
use crate::spec::LabSpec;
use crate::sys;

/// Longest path of a lab's folder: Unix sockets in it must stay under 108 bytes.
const MAX_DIR: usize = 80;

/// First port that labs use; the last is below the kernel's own range.
const FIRST_PORT: u16 = 10_240;

/// So far above the port of a node's slurmd its gpuos_mover listens, as gpuos_mover has it where no port is set.
const MOVER_ABOVE: u16 = 1000;

/// A process and when it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// Its pid.
    pub pid: u32,
    /// When it started, in clock ticks since boot: tells it from a later one of that pid.
    pub start: u64,
}

/// What is known of a lab: the file `lab.json` in its folder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Layout of this file.
    pub format: u32,
    /// Random, 12 hexadecimal digits; all processes of the lab carry it.
    pub id: String,
    /// Its folder.
    pub dir: PathBuf,
    /// The process that it ends with; `None` for one that `gpuos lab down` ends.
    pub owner: Option<Owner>,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// Port of slurmctld; the slurmds have the following ones, then slurmdbd where there is one. 0 with a PBS, whose hosts have
    /// networks of their own.
    pub port: u16,
    /// Whether jobs are confined by device cgroups.
    pub cgroup: bool,
    /// Release of its Slurm or PBS; empty until that is known.
    pub slurm: String,
    /// Folder of the suite that its Slurm comes from; `None` for this machine's Slurm.
    pub root: Option<PathBuf>,
    /// What was asked for.
    pub spec: LabSpec,
}

impl Record {
    /// Path below the lab's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Port of slurmdbd.
    pub(crate) fn accounting_port(&self) -> u16 {
        self.port + ports(&self.spec) - 1
    }

    /// Where the device files are.
    pub(crate) fn device_dir(&self) -> PathBuf {
        if sys::is_nodev(&self.dir) {
            Path::new("/dev").join(format!("{PREFIX}{}", self.id))
        } else {
            self.path("dev")
        }
    }

    /// Reads the record in a folder.
    pub(crate) fn read(dir: &Path) -> Option<Record> {
        serde_json::from_slice(&fs::read(dir.join("lab.json")).ok()?).ok()
    }

    /// Writes the record into its folder or another one.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), LabError> {
        let text = serde_json::to_vec_pretty(self).map_err(|e| LabError::Io {
            what: "cannot write lab.json".to_string(),
            source: e.into(),
        })?;
        let new = dir.join("lab.json.new");
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, dir.join("lab.json")))
            .context(|| format!("cannot write {}", dir.join("lab.json").display()))
    }

    /// True when the process that it should have ended with is gone.
    pub fn is_orphan(&self) -> bool {
        self.owner
            .is_some_and(|owner| !process::is_alive(owner.pid, owner.start))
    }

    /// True when no process of the lab runs any more, as after `kill -9` of all of them.
    pub fn is_dead(&self) -> bool {
        process::members(&self.id, &self.dir).is_empty()
    }

    /// Ends all processes of the lab and removes all its files.
    pub(crate) fn clean(&self) -> Result<(), LabError> {
        let left = process::end_all(&self.id, &self.dir);
        cgroup::remove(&self.id);
        let _ = fs::remove_dir_all(Path::new("/dev").join(format!("{PREFIX}{}", self.id)));
        // select/gpuos records decisions in memory, for each folder of a slurm.conf.
        let _ = fs::remove_file(gpuos_placement::record::path(
            &self.path("etc").to_string_lossy(),
        ));
        if let Some((pid, stat)) = left.iter().next() {
            return Err(LabError::Machine {
                what: format!(
                    "process {pid} ({}) of lab {} does not end",
                    stat.comm, self.spec.name
                ),
                fix: "it hangs in the kernel; run `gpuos lab down` again when it is gone"
                    .to_string(),
            });
        }
        // Another lab may have taken the name meanwhile.
        if Record::read(&self.dir).is_some_and(|now| now.id == self.id) {
            sys::unmount_below(&self.dir);
            fs::remove_dir_all(&self.dir)
                .context(|| format!("cannot remove {}", self.dir.display()))?;
        }
        Ok(())
    }
}

/// Folder of all labs: `$GPUOS_LAB_DIR`, else `/run/gpuos-lab`.
pub fn state_root() -> PathBuf {
    std::env::var_os("GPUOS_LAB_DIR")
        .filter(|dir| !dir.is_empty())
        .map_or_else(|| PathBuf::from("/run/gpuos-lab"), PathBuf::from)
}

/// The labs in [`state_root`], by name.
pub fn records() -> Vec<Record> {
    let mut all: Vec<Record> = fs::read_dir(state_root())
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .filter_map(|entry| Record::read(&entry.path()))
        .collect();
    all.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
    all
}

/// The record of one lab.
///
/// # Errors
/// There is no lab of that name.
pub fn record(name: &str) -> Result<Record, LabError> {
    Record::read(&state_root().join(name)).ok_or_else(|| LabError::NotFound(name.to_string()))
}

/// Ends a lab, whoever made it, and removes its files.
pub fn down(name: &str) -> Result<(), LabError> {
    let record = record(name)?;
    if sys::is_root() {
        record.clean()
    } else {
        Err(LabError::NotRoot)
    }
}

/// Cleans up labs whose owner is gone. Returns their names.
pub fn sweep() -> Vec<String> {
    let orphans = records().into_iter().filter(Record::is_orphan);
    orphans
        .filter(|record| record.clean().is_ok())
        .map(|record| record.spec.name)
        .collect()
}

/// Takes a name, a folder and ports for a new lab.
pub(crate) fn claim(spec: &LabSpec) -> Result<Record, LabError> {
    let root = state_root();
    fs::create_dir_all(&root).context(|| format!("cannot make {}", root.display()))?;
    let root = root
        .canonicalize()
        .context(|| format!("cannot read {}", root.display()))?;
    let dir = root.join(&spec.name);
    if dir.as_os_str().len() > MAX_DIR {
        return Err(LabError::Spec(format!(
            "the folder {} is too long for Unix sockets in it (at most {MAX_DIR} bytes): set GPUOS_LAB_DIR to a shorter path",
            dir.display()
        )));
    }
    sweep();
    let _lock = sys::lock(&root.join(".lock"))
        .context(|| format!("cannot lock {}", root.join(".lock").display()))?;
    if let Some(old) = Record::read(&dir) {
        let alive = !old.is_orphan() && (old.owner.is_some() || !old.is_dead());
        if alive {
            return Err(LabError::InUse(spec.name.clone()));
        }
        old.clean()?;
    }
    let id = random_id()?;
    let record = Record {
        format: 1,
        port: match spec.pbs {
            Some(_) => 0,
            None => free_ports(&id, spec)?,
        },
        id,
        dir: dir.clone(),
        owner: this_process(),
        created: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |t| t.as_secs()),
        cgroup: false,
        slurm: String::new(),
        root: None,
        spec: spec.clone(),
    };
    let new = root.join(format!(".new-{}", record.id));
    fs::create_dir(&new).context(|| format!("cannot make {}", new.display()))?;
    record.write(&new)?;
    let _ = fs::remove_dir_all(&dir);
    fs::rename(&new, &dir).context(|| format!("cannot make {}", dir.display()))?;
    Ok(record)
}

/// This process as an owner.
pub(crate) fn this_process() -> Option<Owner> {
    let pid = std::process::id();
    let start = Stat::read(pid)?.start;
    Some(Owner { pid, start })
}

fn random_id() -> Result<String, LabError> {
    let mut bytes = [0u8; 6];
    fs::File::open("/dev/urandom")
        .and_then(|mut f| std::io::Read::read_exact(&mut f, &mut bytes))
        .context(|| "cannot read /dev/urandom".to_string())?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// How many ports a lab needs.
fn ports(spec: &LabSpec) -> u16 {
    1 + spec.node_names().len() as u16 + u16::from(spec.accounting)
}

/// The runs of ports of a lab, from the first and to behind the last: those of Slurm, and those of movers.
fn runs(port: u16, spec: &LabSpec) -> Vec<(u16, u16)> {
    let count = ports(spec);
    let above = spec.movers.is_some().then_some(MOVER_ABOVE);
    let all = [Some(0), above].into_iter().flatten();
    all.map(|above| (port + above, port + above + count))
        .collect()
}

/// The first of a run of ports that no lab has and nobody listens on. They lie below the range from
/// which the kernel serves outgoing connections, so nobody gets one by chance.
fn free_ports(id: &str, spec: &LabSpec) -> Result<u16, LabError> {
    let count = ports(spec);
    let above = runs(0, spec).last().map_or(0, |(first, _)| *first);
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let low: u16 = range
        .split_ascii_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(32_768);
    let end = if low > FIRST_PORT + 2 * count + above {
        low - above
    } else {
        u16::MAX - above
    };
    let records = records();
    let taken: Vec<(u16, u16)> = records.iter().flat_map(|r| runs(r.port, &r.spec)).collect();
    let room = end - FIRST_PORT - count;
    let seed = u64::from_str_radix(id, 16).unwrap_or(0);
    let mut at = FIRST_PORT + (seed % u64::from(room)) as u16;
    for _ in 0..2000 {
        let last = at + count;
        let is_free = |(first, last): &(u16, u16)| {
            taken.iter().all(|(a, b)| last <= a || first >= b)
                && (*first..*last).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        };
        if runs(at, spec).iter().all(is_free) {
            return Ok(at);
        }
        at = if last + count >= end {
            FIRST_PORT
        } else {
            last
        };
    }
    Err(LabError::Machine {
        what: format!("no {count} free ports in a row between {FIRST_PORT} and {end}"),
        fix: "end other labs (`gpuos lab list`) or programs that hold them".to_string(),
    })
}
