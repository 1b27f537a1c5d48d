//! What `[memory]` of gpuos.toml needs of Slurm and of this node: memory that Slurm counts, GPUs whose memory is known, shards, the library that
//! programs load, and a disk for what is parked.

use std::path::Path;
use std::time::Duration;

use gpuos_config::gpuos_toml::{Config, ParkingConfig};
use gpuos_host::Kind;
use gpuos_model::hostlist::compress;

use super::about::{self, About};
use super::cgroup;
use super::findings::Findings;
use super::folders::Folder;
use super::{Context, plugstack, toml};

const NAME: About = about::MEMORY;

/// The library, unless plugstack.conf names another.
const LIBRARY: &str = "/usr/lib/gpuos/libgpuos_preload.so.0";
/// Since this driver there are calls that park a program from outside.
const CHECKPOINTS_FROM: u32 = 570;
/// What locks less memory than this, in bytes, is refused to programs that use adapters and large pinned buffers.
const LITTLE_LOCKED: u64 = 1 << 30;
/// How long systemd may take.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn check(look: &Context, findings: &mut Findings) {
    let Some(config) = toml::config(look) else {
        return;
    };
    let uses = config.memory.oversubscribe || config.memory.turns > 0;
    let before = findings.0.len();
    if uses {
        counted(look, &config, findings);
        nodes(look, &config, findings);
        confined(look, &config, findings);
        if !look.here.gpu_nodes.is_empty() {
            library(look, findings);
            driver(look, &config, findings);
        }
    }
    shares(look, &config, uses, findings);
    if let (Some(parking), false) = (&config.parking, look.here.lab) {
        parked(look, parking, uses, findings);
    }
    locked(look, findings);
    if uses && findings.0.len() == before {
        findings.ok(
            NAME,
            format!("{} is as Slurm and the node have it", keys(&config)),
        );
    }
}

/// What of it is turned on, as it is written.
fn keys(config: &Config) -> String {
    let memory = &config.memory;
    let mut keys = Vec::new();
    if memory.oversubscribe {
        keys.push("oversubscribe = true".to_string());
    }
    if memory.turns > 0 {
        keys.push(format!("turns = {}", memory.turns));
    }
    keys.join(", ")
}

fn place(look: &Context) -> String {
    toml::path(look).display().to_string()
}

/// What lies in host memory has to be counted there.
fn counted(look: &Context, config: &Config, findings: &mut Findings) {
    let Some(value) = look.settings.get("SelectTypeParameters") else {
        return;
    };
    if !value.to_ascii_uppercase().contains("MEMORY") {
        findings
            .fail(
                NAME,
                format!(
                    "[memory] {}, and Slurm does not count memory (SelectTypeParameters={value})",
                    keys(config)
                ),
                "set SelectTypeParameters=CR_Core_Memory and RealMemory= of the nodes, and restart slurmctld",
            )
            .at(look.place("selecttypeparameters"))
            .why("jobs with --gpuos-mem or timeslice,mem= are refused: host memory could be promised twice");
    }
}

/// GPUs whose memory gpuos.toml says, hosts whose memory slurm.conf says, and shards for turns.
fn nodes(look: &Context, config: &Config, findings: &mut Findings) {
    let Some(lines) = toml::node_lines(look) else {
        return;
    };
    if lines.dynamic() {
        findings
            .warn(
                NAME,
                format!(
                    "[memory] {}, and MaxNodeCount allows nodes that no file names",
                    keys(config)
                ),
                "name all nodes in slurm.conf, and take MaxNodeCount out",
            )
            .at(look.place("maxnodecount"))
            .why("what their GPUs have is not known, so the options are refused to all jobs");
    }
    let facts = lines.all();
    let hosts = lines.memory_mib();
    let with_gpus = || facts.iter().zip(&hosts).filter(|(facts, _)| facts.gpus > 0);
    let mib = |facts| {
        let stated = config.stated_type(facts);
        stated.map_or(0, |stated| stated.gpu_memory_mib)
    };
    let unknown: Vec<&str> = with_gpus()
        .filter(|(facts, _)| mib(facts) == 0)
        .map(|(facts, _)| facts.name.as_str())
        .collect();
    if !unknown.is_empty() {
        let nodes = compress(unknown);
        findings
            .warn(
                NAME,
                format!(
                    "[memory] {}, and gpuos.toml does not say how much memory the GPUs of {nodes} have",
                    keys(config)
                ),
                format!("write [[nodes]] match = \"{nodes}\", type = \"…\" with a type of `gpuos topo --type`, or a [[node-type]] of your own"),
            )
            .at(place(look))
            .why("jobs that could get such a GPU are refused: what a type is called in slurm.conf does not tell (an A100 has 40 or 80 GB)");
    }
    let unsaid: Vec<&str> = with_gpus()
        .filter(|(_, host)| **host == 0)
        .map(|(facts, _)| facts.name.as_str())
        .collect();
    if !unsaid.is_empty() {
        let nodes = compress(unsaid);
        findings
            .warn(
                NAME,
                format!("{nodes}: slurm.conf has no RealMemory=, which counts as 1 MiB"),
                "write RealMemory= into the NodeName= line, as `slurmd -C` on the node prints it",
            )
            .at(look.settings.slurm_conf().display())
            .why("no job with memory in tiers or in turns ever starts there");
    }
    let smallest = with_gpus()
        .map(|(facts, _)| mib(facts))
        .filter(|mib| *mib > 0)
        .min();
    let reserve = u64::from(config.memory.reserve_mib);
    if let Some(smallest) = smallest.filter(|smallest| reserve >= *smallest) {
        findings
            .warn(
                NAME,
                format!("reserve-mib = {reserve}, and a GPU has {smallest} MiB: nothing is left of it for programs"),
                "write what driver and contexts take, such as reserve-mib = 1024",
            )
            .at(place(look));
    }
    let turns = u64::from(config.memory.turns);
    let shards = lines.shards_of_gpu();
    if turns > 0 && !lines.has_shards().contains(&true) {
        findings
            .warn(
                NAME,
                format!("turns = {turns}, and no node has GRES shard: no job can share a GPU"),
                "write GresTypes=gpu,shard, Gres=gpu:8,shard:32 for four on each of eight GPUs, and Name=shard Count=32 in gres.conf",
            )
            .at(place(look));
    } else if turns > 0 && shards > 0 && turns > shards {
        findings
            .warn(
                NAME,
                format!("turns = {turns}, and a GPU has {shards} shards at most: no more than {shards} jobs share one"),
                format!("count more of shard in Gres= and gres.conf, or write turns = {shards}"),
            )
            .at(place(look));
    }
}

/// A job that takes more memory than it has paid for takes that of others.
fn confined(look: &Context, config: &Config, findings: &mut Findings) {
    // A lab is for trials, and has the control groups of the machine that it is on.
    if !look.here.lab && cgroup::confines_memory(look) == Some(false) {
        findings
            .warn(
                NAME,
                format!(
                    "[memory] {}, and nothing keeps a job to its host memory (ConstrainRAMSpace is not yes)",
                    keys(config)
                ),
                "set ConstrainRAMSpace=yes in cgroup.conf, and restart the slurmds",
            )
            .at(look.settings.directory().join("cgroup.conf").display())
            .why("a program that takes more has the memory in which another job's GPU memory lies");
    }
}

/// What programs of such jobs load.
fn library(look: &Context, findings: &mut Findings) {
    let named = plugstack::argument(look, "preload");
    let path = named.clone().unwrap_or_else(|| LIBRARY.into());
    let path = Path::new(&path);
    let shown = path.display();
    let wrong = match look.machine.stat(path) {
        Err(_) => "is not there".to_string(),
        Ok(stat) if stat.kind != Kind::File => "is no file".into(),
        Ok(stat) if stat.length == 0 => "is empty".into(),
        Ok(stat) if stat.mode & 0o004 == 0 => {
            format!("cannot be read by users (mode {:o})", stat.mode)
        }
        Ok(stat) if stat.mode & 0o022 != 0 => {
            format!("may be written by others than root (mode {:o})", stat.mode)
        }
        Ok(_) => return,
    };
    let fix = match named {
        Some(_) => "correct preload= behind spank_gpuos.so in plugstack.conf, or put the file there, of root with mode 0755".to_string(),
        None => format!(
            "`make install` on the node brings it; put it at {shown} of root with mode 0755, or write preload=PATH behind spank_gpuos.so in \
             plugstack.conf"
        ),
    };
    findings
        .fail(
            NAME,
            format!(
                "the library that programs with memory in tiers or in turns load, {shown}, {wrong}"
            ),
            fix,
        )
        .at(shown)
        .why("steps of jobs with --gpuos-mem or timeslice,mem= fail on this node");
}

/// The driver's release, by the file that its module has.
fn driver(look: &Context, config: &Config, findings: &mut Findings) {
    if !config.memory.driver_checkpoint {
        return;
    }
    let path = Path::new("/proc/driver/nvidia/version");
    let bytes = look.machine.read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let release = text.split_whitespace().find_map(|word| {
        let (major, rest) = word.split_once('.')?;
        let plain = !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        Some((major.parse::<u32>().ok()?, word)).filter(|_| plain)
    });
    if let Some((major, release)) = release
        && major < CHECKPOINTS_FROM
    {
        findings
            .warn(
                NAME,
                format!(
                    "driver-checkpoint = true takes driver {CHECKPOINTS_FROM}, and this node has {release}"
                ),
                "update the driver, or leave driver-checkpoint out",
            )
            .at(place(look))
            .why("a program in turns that cannot be moved is ended, as without the key");
    }
}

/// Who may have how much.
fn shares(look: &Context, config: &Config, uses: bool, findings: &mut Findings) {
    let shares = &config.memory.shares;
    if shares.is_empty() {
        return;
    }
    if !uses {
        findings
            .warn(
                NAME,
                "[[memory-share]] says nothing: [memory] has neither oversubscribe = true nor turns",
                "add one of them, or take the tables out",
            )
            .at(place(look));
    }
    let accounted = look
        .settings
        .get("AccountingStorageType")
        .is_some_and(|kind| kind.ends_with("slurmdbd"));
    if !accounted && shares.iter().any(|share| share.qos.is_some()) {
        findings
            .warn(
                NAME,
                "[[memory-share]] with qos = is of no job: without slurmdbd jobs have no QOS",
                "set AccountingStorageType=accounting_storage/slurmdbd, or write partition = in its place",
            )
            .at(place(look));
    }
    let kept: u64 = shares.iter().map(|share| share.guaranteed_mib).sum();
    let hosts = toml::node_lines(look).map(|lines| lines.memory_mib());
    let smallest = hosts
        .unwrap_or_default()
        .into_iter()
        .filter(|mib| *mib > 0)
        .min();
    if let Some(smallest) = smallest.filter(|smallest| kept > *smallest) {
        findings
            .warn(
                NAME,
                format!(
                    "[[memory-share]] guarantee {kept} MiB together, and a node has {smallest} MiB"
                ),
                "lower guaranteed = of some of them",
            )
            .at(place(look))
            .why("what is guaranteed to all cannot be given to all");
    }
}

/// A disk for what is parked.
fn parked(look: &Context, parking: &ParkingConfig, uses: bool, findings: &mut Findings) {
    if !uses {
        findings
            .warn(
                NAME,
                "nvme = … says nothing: [memory] has neither oversubscribe = true nor turns",
                "add one of them, or take nvme out",
            )
            .at(place(look));
    }
    if look.here.gpu_nodes.is_empty() {
        return;
    }
    let path = parking.nvme.as_path();
    let folder = Folder {
        name: NAME,
        key: "nvme in [memory]",
        path,
        closed: 0o022,
        why: "gpuos_mover makes it on whatever file system is there, which may be the node's root",
    };
    let missing = format!(
        "mount the disk, make the folder (mkdir -m 700 {}), then `systemctl restart gpuos_mover`",
        path.display()
    );
    if !folder.check(look.machine, &missing, findings) {
        return;
    }
    folder.on_disk(look.machine, findings);
    if let Ok((_, size)) = look.machine.disk_space(path)
        && size >> 30 < parking.gib.into()
    {
        findings
            .warn(
                NAME,
                format!(
                    "nvme-gib = {}, and the file system of {} has {} GiB",
                    parking.gib,
                    path.display(),
                    size >> 30
                ),
                "lower nvme-gib, and the GRES that counts it, or name a folder on a larger disk",
            )
            .at(place(look))
            .why("memory of a job is to be parked there, and its program is ended when that fails");
    }
}

/// What memory units of this host let processes lock.
fn locked(look: &Context, findings: &mut Findings) {
    let booted = look.machine.stat(Path::new("/run/systemd/system")).is_ok();
    if look.here.gpu_nodes.is_empty() || look.here.lab || !booted {
        return;
    }
    let args = [
        "show",
        "--property=Id,LimitMEMLOCK",
        "gpuosd.service",
        "slurmd.service",
    ];
    let Ok(told) = look.machine.run_within(PATIENCE, "systemctl", &args) else {
        return;
    };
    for unit in told.stdout.split("\n\n") {
        let get = |key: &str| {
            let mut lines = unit.lines();
            lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
        };
        let (Some(id), Some(limit)) = (get("Id"), get("LimitMEMLOCK")) else {
            continue;
        };
        // `infinity`, or a number.
        let Ok(bytes) = limit.parse::<u64>() else {
            continue;
        };
        if bytes >= LITTLE_LOCKED {
            continue;
        }
        let name = id.trim_end_matches(".service");
        let why = match name {
            "gpuosd" => {
                "before Linux 5.11 programs for devices count there, and gpuosd cannot look into groups of version 2"
            }
            _ => {
                "jobs have it of slurmd: what adapters, GPUDirect and pinned buffers need to lock is refused, and moves between GPU and host fail"
            }
        };
        findings
            .warn(
                NAME,
                format!("{id} may lock {} KiB of memory (LimitMEMLOCK)", bytes >> 10),
                format!("`systemctl edit {name}`: [Service] LimitMEMLOCK=infinity, then `systemctl restart {name}`"),
            )
            .why(why);
    }
}
