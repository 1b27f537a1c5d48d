//! `[checkpoint]`: whether and how checkpoints of jobs are made.
use std::path::PathBuf;

use gpuos_checkpoint::sets::{MOST_NODES, NoSets, NodeDomains, Scheme, arrange};
use gpuos_model::fnv::fnv;
use gpuos_model::reading::{Check, ConfigError, Place, quoted};
use toml::Spanned;

use super::raw::RawCheckpoint;
use crate::options::{CheckpointOption, MOST_EVERY};

/// The most levels in `domains`.
const MOST_DOMAINS: usize = 8;

/// 1 PiB in GiB, and 1 TiB/s in MiB/s: more than a node has.
const MOST_GIB: i64 = 1 << 20;

/// What comes on top of a checkpoint that is made before a job ends, in seconds: until the end is seen, and until the job is requeued. Own choice.
pub const AROUND_END_S: u32 = 15;

/// Key files in `encrypt-keys`, and in `other-keys`, at most.
const MOST_KEYS: usize = 16;

/// When what is stored is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// Never.
    #[default]
    No,
    /// Where it costs no time: the disk, the file system or the network is slower.
    Auto,
    /// Always.
    Always,
}

/// `[checkpoint]`. By default none are made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointConfig {
    /// Whether jobs can have checkpoints.
    pub enabled: bool,
    /// TCP port of gpuos_mover on each node; 0: that of slurmd there and 1000 more, so that several nodes on one machine have one each.
    pub port: u16,
    /// What the nodes of a job keep for each other that names no scheme; [`CheckpointConfig::scheme_for`] has the rest.
    pub scheme: Scheme,
    /// So many checkpoints of a job are kept.
    pub keep: u32,
    /// The shortest time between two checkpoints of a job, in seconds.
    pub least_s: u32,
    /// How long a program may take to write its files, in seconds.
    pub ready_s: u32,
    /// The share of a job's time that checkpoints may cost where it leaves the interval to gpuos, in percent.
    pub overhead_percent: u32,
    /// Mean time between failures of a node, in hours, before gpuos has seen any. The default is that of Meta's training of Llama 3,
    /// rounded down: 419 unexpected interruptions in 54 days on 16,384 GPUs, which are 2,048 nodes, are one in 6,335 hours of a
    /// node ("The Llama 3 Herd of Models", arXiv:2407.21783, 2024, section 3.3.4). The best interval goes with its square root.
    pub node_mtbf_hours: u32,
    /// For how long checkpoints of a job that has ended are kept, in hours.
    pub ended_hours: u32,
    /// The largest checkpoint of a node, in GiB; 0: no limit.
    pub max_gib: u32,
    /// What a user's checkpoints may take on a node together, in GiB; 0: no limit.
    pub user_gib: u32,
    /// The same as a part of the file system of the store, in percent; 100: no limit. Both hold.
    pub user_percent: u32,
    /// What a mover sends, in MiB/s; 0: as fast as it goes.
    pub rate_mib: u32,
    /// What a mover reads from and writes to the disk of its store, in MiB/s; 0: as fast as it goes.
    pub disk_rate_mib: u32,
    /// When what is stored from now on is compressed.
    pub compress: Compression,
    /// Whether what is stored from now on is encrypted.
    pub encrypt: bool,
    /// Files of keys for that: the first encrypts, all decrypt. Without any the site's key does.
    pub encrypt_keys: Vec<PathBuf>,
    /// Files of other keys than gpuos_mover's own: what was signed with them holds, too.
    pub other_keys: Vec<PathBuf>,
    /// Levels of the fabric, or `power`, of which no two nodes of a set share a domain.
    pub domains: Vec<String>,
    /// The folder on a file system of all nodes to which checkpoints are drained; `None`: there is none.
    pub shared: Option<PathBuf>,
    /// One of so many committed checkpoints is drained there, where the job does not say otherwise.
    pub shared_every: u32,
    /// What a node writes there, in MiB/s; 0: as fast as it goes.
    pub shared_rate_mib: u32,
}

impl Default for CheckpointConfig {
    fn default() -> CheckpointConfig {
        CheckpointConfig {
            enabled: false,
            // Slurm's own daemons have 6817 to 6820.
            port: 6821,
            scheme: Scheme::Partner,
            keep: 2,
            least_s: 60,
            ready_s: 600,
            overhead_percent: 3,
            node_mtbf_hours: 6000,
            ended_hours: 24,
            max_gib: 0,
            user_gib: 0,
            user_percent: 50,
            rate_mib: 0,
            disk_rate_mib: 0,
            compress: Compression::No,
            encrypt: false,
            encrypt_keys: Vec::new(),
            other_keys: Vec::new(),
            domains: Vec::new(),
            shared: None,
            shared_every: 6,
            shared_rate_mib: 0,
        }
    }
}

impl CheckpointConfig {
    /// Stands for all of it among programs of one release: with another one something else was read.
    pub fn digest(&self) -> u64 {
        fnv(format!("{self:?}").bytes())
    }

    /// The scheme of a job on so many nodes (0 counts as 1), which are not told apart here: the one that it named, else the site's.
    /// Where the site's needs more nodes than there are, `partner` takes its place, and `single` on one node alone.
    ///
    /// # Errors
    /// The job named one that needs more nodes.
    pub fn scheme_for(&self, named: Option<Scheme>, nodes: u32) -> Result<Scheme, NoSets> {
        // No scheme needs more, and there may be millions in a request.
        let count = (nodes as usize).clamp(1, usize::from(MOST_NODES));
        let Some(scheme) = named else {
            let fits = |scheme: &Scheme| scheme.nodes() <= count;
            let other = Some(Scheme::Partner).filter(fits);
            let own = Some(self.scheme).filter(fits);
            return Ok(own.or(other).unwrap_or(Scheme::Single));
        };
        arrange(&vec![NodeDomains::default(); count], scheme).map(|_| scheme)
    }

    /// How many seconds the last checkpoint of a job on so many nodes may take as far as that is known before any was made: [`AROUND_END_S`],
    /// and where programs write into memory, all of that at the rates that the site sets for disk and network. A rate that is not set counts
    /// no time.
    pub fn last_takes_s(&self, asked: &CheckpointOption, nodes: u32) -> u64 {
        let mib = u64::from(asked.memory_mib.unwrap_or(0));
        let scheme = self.scheme_for(asked.scheme, nodes);
        let copies = scheme.map_or(0, |scheme| u64::from(scheme.parity()));
        let at = |mib: u64, rate: u32| match rate {
            0 => 0,
            rate => mib.div_ceil(rate.into()),
        };
        let written = at(mib, self.disk_rate_mib);
        u64::from(AROUND_END_S) + written + at(mib * copies, self.rate_mib)
    }
}

/// Ports up to 1024 are those of the system's own services.
fn port(check: Check, raw: &Option<Spanned<i64>>, usual: u16) -> Result<u16, ConfigError> {
    let port = check.int("port", raw, 0..=65_535, usual.into())? as u16;
    match raw {
        Some(at) if (1..=1024).contains(&port) => {
            let form = "0, or 1025 to 65535".to_string();
            Err(check.refuse("port", at, port.to_string(), form))
        }
        _ => Ok(port),
    }
}

pub(super) fn read(check: Check, raw: &RawCheckpoint) -> Result<CheckpointConfig, ConfigError> {
    let usual = CheckpointConfig::default();
    let int = |key, value, range, default: u32| {
        let number = check.int(key, value, range, default.into())?;
        Ok::<u32, ConfigError>(number as u32)
    };
    Ok(CheckpointConfig {
        enabled: raw.enabled.unwrap_or(usual.enabled),
        port: port(check, &raw.port, usual.port)?,
        scheme: scheme(check, &raw.scheme, usual.scheme)?,
        keep: int("keep", &raw.keep, 1..=100, usual.keep)?,
        least_s: int(
            "least-seconds",
            &raw.least_seconds,
            1..=604_800,
            usual.least_s,
        )?,
        ready_s: int(
            "ready-seconds",
            &raw.ready_seconds,
            1..=86_400,
            usual.ready_s,
        )?,
        overhead_percent: int(
            "overhead-percent",
            &raw.overhead_percent,
            1..=50,
            usual.overhead_percent,
        )?,
        node_mtbf_hours: int(
            "node-mtbf-hours",
            &raw.node_mtbf_hours,
            1..=10_000_000,
            usual.node_mtbf_hours,
        )?,
        ended_hours: int(
            "ended-hours",
            &raw.ended_hours,
            0..=87_600,
            usual.ended_hours,
        )?,
        max_gib: int("max-gib", &raw.max_gib, 0..=MOST_GIB, usual.max_gib)?,
        user_gib: int("user-gib", &raw.user_gib, 0..=MOST_GIB, usual.user_gib)?,
        user_percent: int(
            "user-percent",
            &raw.user_percent,
            1..=100,
            usual.user_percent,
        )?,
        rate_mib: int("rate-mib", &raw.rate_mib, 0..=MOST_GIB, usual.rate_mib)?,
        disk_rate_mib: int(
            "disk-rate-mib",
            &raw.disk_rate_mib,
            0..=MOST_GIB,
            usual.disk_rate_mib,
        )?,
        compress: compress(check, &raw.compress)?,
        encrypt: raw.encrypt.unwrap_or(usual.encrypt),
        encrypt_keys: keys(check, "encrypt-keys", raw.encrypt_keys.as_deref())?,
        other_keys: keys(check, "other-keys", raw.other_keys.as_deref())?,
        domains: domains(check, raw)?,
        shared: shared(check, raw)?,
        shared_every: int(
            "shared-every",
            &raw.shared_every,
            1..=MOST_EVERY.into(),
            usual.shared_every,
        )?,
        shared_rate_mib: int(
            "shared-rate-mib",
            &raw.shared_rate_mib,
            0..=MOST_GIB,
            usual.shared_rate_mib,
        )?,
    })
}

fn compress(check: Check, value: &Option<Spanned<String>>) -> Result<Compression, ConfigError> {
    let Some(value) = value else {
        return Ok(Compression::default());
    };
    match value.get_ref().as_str() {
        "no" => Ok(Compression::No),
        "auto" => Ok(Compression::Auto),
        "always" => Ok(Compression::Always),
        other => {
            let form = "\"no\", \"auto\" or \"always\"";
            Err(check.refuse("compress", value, quoted(other), form))
        }
    }
}

fn keys(
    check: Check,
    name: &str,
    given: Option<&[Spanned<String>]>,
) -> Result<Vec<PathBuf>, ConfigError> {
    let given = given.unwrap_or_default();
    if let Some(one) = given.get(MOST_KEYS) {
        let message = format!("{name} has more than {MOST_KEYS} files");
        return Err(check.error(one, message));
    }
    let path = |value| check.path(name, value, "/etc/gpuos/checkpoint-1.key");
    given.iter().map(path).collect()
}

fn shared(check: Check, raw: &RawCheckpoint) -> Result<Option<PathBuf>, ConfigError> {
    let path = |value| check.path("shared", value, "/scratch/gpuos/checkpoints");
    raw.shared.as_ref().map(path).transpose()
}

fn scheme(
    check: Check,
    value: &Option<Spanned<String>>,
    usual: Scheme,
) -> Result<Scheme, ConfigError> {
    let Some(value) = value else { return Ok(usual) };
    value.get_ref().parse().map_err(|_| {
        let form = "\"single\", \"partner\", \"xor:NODES\" (2 to 64) or \"rs:DATA+PARITY\" (PARITY 1 to 16, together at most 64)";
        check.refuse("scheme", value, quoted(value.get_ref()), form)
    })
}

fn domains(check: Check, raw: &RawCheckpoint) -> Result<Vec<String>, ConfigError> {
    let given = raw.domains.as_deref().unwrap_or_default();
    if let Some(one) = given.get(MOST_DOMAINS) {
        let message = format!("domains has more than {MOST_DOMAINS} levels");
        return Err(check.error(one, message));
    }
    let mut domains: Vec<String> = Vec::new();
    for value in given {
        let name = check.name("domains", value)?.to_ascii_lowercase();
        if matches!(name.as_str(), "node" | "any") {
            let form = "levels of the fabric above the node, or \"power\"";
            return Err(check.refuse("domains", value, quoted(&name), form));
        }
        if domains.contains(&name) {
            let message = format!("{name} stands twice in domains; keep it once");
            return Err(check.error(value, message));
        }
        domains.push(name);
    }
    Ok(domains)
}

/// Levels that only the cluster can confirm, and where they stand; power domains have a table of their own.
pub(super) fn named_levels(check: Check, raw: &RawCheckpoint) -> Vec<(String, Place)> {
    let given = raw.domains.iter().flatten();
    let named = given.map(|value| (value.get_ref().to_ascii_lowercase(), check.place(value)));
    named.filter(|(name, _)| name != "power").collect()
}

#[cfg(test)]
mod tests {
    use gpuos_checkpoint::sets::Scheme;
    use gpuos_model::cluster::Cluster;

    use super::{CheckpointConfig, Compression};
    use crate::gpuos_toml::Config;
    use crate::options::parse_checkpoint;

    fn read(text: &str) -> Result<Config, String> {
        let config = Config::parse(&format!("[checkpoint]\n{text}\n"), "gpuos.toml");
        config.map_err(|e| e.to_string())
    }

    #[test]
    fn no_checkpoints_are_made_by_default() {
        assert_eq!(
            Config::parse("", "x").unwrap().checkpoint,
            CheckpointConfig::default()
        );
        let config = read("").unwrap();
        assert_eq!(config.checkpoint, CheckpointConfig::default());
        assert!(!config.checkpoint.enabled && config.leaves_all_nodes());
    }

    #[test]
    fn every_key() {
        let text = "enabled = true\nport = 7000\nscheme = \"rs:6+2\"\nkeep = 3\nleast-seconds = 1\nready-seconds = 60\n\
                    overhead-percent = 5\nnode-mtbf-hours = 100\nended-hours = 0\nmax-gib = 500\nuser-gib = 1000\nuser-percent = 40\nrate-mib = 250\ndisk-rate-mib = 700\n\
                    compress = \"auto\"\nencrypt = true\nencrypt-keys = [\"/etc/gpuos/2.key\", \"/etc/gpuos/1.key\"]\nother-keys = [\"/etc/gpuos/0.key\"]\n\
                    domains = [\"Leaf\", \"power\"]\nshared = \"/scratch/c\"\nshared-every = 3\nshared-rate-mib = 9";
        let expected = CheckpointConfig {
            enabled: true,
            port: 7000,
            scheme: Scheme::ReedSolomon { data: 6, parity: 2 },
            keep: 3,
            least_s: 1,
            ready_s: 60,
            overhead_percent: 5,
            node_mtbf_hours: 100,
            ended_hours: 0,
            max_gib: 500,
            user_gib: 1000,
            user_percent: 40,
            rate_mib: 250,
            disk_rate_mib: 700,
            compress: Compression::Auto,
            encrypt: true,
            encrypt_keys: vec!["/etc/gpuos/2.key".into(), "/etc/gpuos/1.key".into()],
            other_keys: vec!["/etc/gpuos/0.key".into()],
            domains: vec!["leaf".into(), "power".into()],
            shared: Some("/scratch/c".into()),
            shared_every: 3,
            shared_rate_mib: 9,
        };
        let config = read(text).unwrap();
        assert_eq!(config.checkpoint, expected);
        // Levels that the cluster lacks are told of; power is none.
        let strange = config.unknown_levels(&Cluster::default());
        let strange: Vec<String> = strange.iter().map(ToString::to_string).collect();
        assert_eq!(strange.len(), 1, "{strange:?}");
        assert!(
            strange[0].contains(
                "gpuos.toml:20:12: this cluster has no level leaf, so it keeps no nodes apart"
            ),
            "{strange:?}"
        );
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, wanted) in [
            ("port = 1024", "0, or 1025 to 65535"),
            ("port = 65536", "from 0 to 65535"),
            ("scheme = \"raid\"", "\"single\", \"partner\""),
            ("scheme = \"xor:1\"", "\"xor:NODES\" (2 to 64)"),
            ("keep = 0", "from 1 to 100"),
            ("user-percent = 0", "from 1 to 100"),
            ("user-percent = 101", "from 1 to 100"),
            ("least-seconds = 0", "from 1 to 604800"),
            ("ready-seconds = 0", "from 1 to 86400"),
            ("overhead-percent = 51", "from 1 to 50"),
            ("node-mtbf-hours = 0", "from 1 to 10000000"),
            ("ended-hours = -1", "from 0 to 87600"),
            ("max-gib = -1", "from 0 to 1048576"),
            ("user-gib = 1048577", "from 0 to 1048576"),
            ("rate-mib = -1", "from 0 to 1048576"),
            ("disk-rate-mib = 1048577", "from 0 to 1048576"),
            ("compress = \"zstd\"", "\"no\", \"auto\" or \"always\""),
            ("encrypt-keys = [\"key\"]", "a path from the root"),
            ("other-keys = [\"key\"]", "a path from the root"),
            ("domains = [\"a b\"]", "a name of 1 to 64"),
            (
                "domains = [\"node\"]",
                "levels of the fabric above the node",
            ),
            ("domains = [\"leaf\", \"LEAF\"]", "leaf stands twice"),
            (
                "domains = [\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\"]",
                "more than 8 levels",
            ),
            ("shared = \"scratch\"", "a path from the root"),
            ("shared-every = 0", "from 1 to 1000000"),
            ("shared-rate-mib = -1", "from 0 to 1048576"),
            ("least = 10", "there is no key `least`"),
        ] {
            let error = read(text).unwrap_err();
            let placed = error.contains("gpuos.toml:2:");
            assert!(error.contains(wanted) && placed, "{text}: {error}");
        }
    }

    #[test]
    fn what_a_last_checkpoint_may_take() {
        let asked = |value| parse_checkpoint(value).unwrap();
        let rates = |disk_rate_mib, rate_mib| CheckpointConfig {
            disk_rate_mib,
            rate_mib,
            ..CheckpointConfig::default()
        };
        for (site, value, nodes, seconds) in [
            (rates(0, 0), "10m", 2, 15),
            (rates(100, 100), "10m", 2, 15),
            (rates(0, 0), "10m,l0=10G", 2, 15),
            (rates(1024, 0), "10m,l0=10G", 2, 25),
            (rates(0, 512), "10m,l0=10G", 2, 35),
            (rates(0, 512), "10m,l0=10G", 1, 15),
            (rates(1024, 512), "10m,l0=10G,l2=rs:2+2", 4, 65),
            (rates(1000, 1000), "10m,l0=1M", u32::MAX, 17),
        ] {
            assert_eq!(
                site.last_takes_s(&asked(value), nodes),
                seconds,
                "{value} {nodes}"
            );
        }
    }

    #[test]
    fn a_job_has_its_own_scheme_or_one_that_fits() {
        let site = |scheme| CheckpointConfig {
            scheme,
            ..CheckpointConfig::default()
        };
        let wide = Scheme::ReedSolomon { data: 6, parity: 2 };
        for (own, nodes, scheme) in [
            (Scheme::Partner, 1, Scheme::Single),
            (Scheme::Partner, 0, Scheme::Single),
            (Scheme::Partner, 3, Scheme::Partner),
            (wide, 7, Scheme::Partner),
            (wide, 8, wide),
            (wide, u32::MAX, wide),
            (Scheme::Single, 100, Scheme::Single),
        ] {
            assert_eq!(
                site(own).scheme_for(None, nodes),
                Ok(scheme),
                "{own} {nodes}"
            );
        }
        let site = site(Scheme::Single);
        assert_eq!(site.scheme_for(Some(wide), 8), Ok(wide));
        assert_eq!(site.scheme_for(Some(wide), u32::MAX), Ok(wide));
        let why = site.scheme_for(Some(wide), 4).unwrap_err().to_string();
        assert_eq!(
            why,
            "l2=rs:6+2 needs at least 8 nodes, and the job has 4; ask for more nodes, or give l2=rs:2+2"
        );
        let why = site.scheme_for(Some(Scheme::Partner), 1).unwrap_err();
        assert!(why.to_string().contains("l2=single"), "{why}");
    }
}
