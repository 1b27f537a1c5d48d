//! `[mig]`: what is done about instances of nobody, how boards can be divided, and which GPUs of
//! which nodes are in MIG mode for good.
use std::collections::HashMap;

use gpuos_core::mig::reconcile::Foreign;
use gpuos_model::gpu_index::{GresGpu, NvmlIndex, NvmlSet, PoolGpu};
use gpuos_model::gpuset::{GpuSet, MAX_GPUS};
use gpuos_model::mig::profile::{ENGINES, MOST_PROFILES, MOST_SLICES};
use gpuos_model::mig::{Geometry, Profile};
use gpuos_model::reading::{Check, ConfigError, Place, quoted};
use gpuos_placement::explain::parse_gpus;
use toml::Spanned;

use super::fabric::hosts;
use super::raw::{RawMig, RawMigBoard, RawMigPool, RawMigProfile};

/// Memory slices of a node that gpuos steers: slices are bits of a `u64`. A pool may have more; those
/// past it are left to Slurm, and no job with `--gpuos-mig` gets them.
pub const STEERED_SLICES: usize = 64;

/// `switch-after` where the file has none, in seconds.
const SWITCH_AFTER: u32 = 60;
/// `switch-hold` where the file has none, in seconds.
const SWITCH_HOLD: u32 = 600;

const WORDS: [(&str, Foreign); 2] = [("leave", Foreign::Leave), ("destroy", Foreign::Destroy)];

/// A kind of GPU in MIG mode: `[[mig.board]]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MigBoard {
    /// Its name, which is the type of its slices in GRES `gpuos` too.
    pub name: String,
    /// How it can be divided.
    pub geometry: Geometry,
}

/// Nodes with the same GPUs in MIG mode: `[[mig.pool]]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MigPool {
    /// The nodes, sorted by name.
    pub nodes: Vec<String>,
    /// Its GPUs.
    pub gpus: NvmlSet,
    /// Those of them that are in GRES `gpu` too, and are divided only while jobs have slices of them. The others are in MIG
    /// mode for good.
    pub switchable: NvmlSet,
    /// Number of their board in [`MigConfig::boards`].
    pub board: usize,
    place: Place,
}

/// `[mig]`. Bit `b` of GRES `gpuos` on a node of a pool is memory slice `b % S` of the `b / S`-th GPU
/// of the pool by ascending NVML index, with `S` the memory slices of the board.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MigConfig {
    /// What gpuosd does about instances that somebody made by hand.
    pub foreign: Foreign,
    /// A MIG-switchable GPU is given to the other kind of job only to one that has waited so many seconds.
    pub switch_after: u32,
    /// It stays with the kind of job that it was given to for so many seconds at least.
    pub switch_hold: u32,
    /// The boards, in the order of the file.
    pub boards: Vec<MigBoard>,
    /// The pools, in the order of the file. No node is in two.
    pub pools: Vec<MigPool>,
}

impl Default for MigConfig {
    fn default() -> MigConfig {
        MigConfig {
            foreign: Foreign::default(),
            switch_after: SWITCH_AFTER,
            switch_hold: SWITCH_HOLD,
            boards: Vec::new(),
            pools: Vec::new(),
        }
    }
}

impl MigConfig {
    /// The pool that a node is in, with its board.
    pub fn pool_of(&self, node: &str) -> Option<(&MigPool, &MigBoard)> {
        let has = |pool: &&MigPool| {
            let found = pool.nodes.binary_search_by(|name| name.as_str().cmp(node));
            found.is_ok()
        };
        let pool = self.pools.iter().find(has)?;
        Some((pool, self.boards.get(pool.board)?))
    }

    /// The board with this name, which is that of a GRES type.
    pub fn board(&self, name: &str) -> Option<&MigBoard> {
        let same = |board: &&MigBoard| board.name.eq_ignore_ascii_case(name);
        self.boards.iter().find(same)
    }

    /// Nodes that pools list, with the place of the pool.
    pub(super) fn node_names(&self) -> impl Iterator<Item = (&str, Place)> {
        let each = |pool: &MigPool| pool.place;
        let pools = self.pools.iter().map(move |pool| (pool, each(pool)));
        pools.flat_map(|(pool, place)| pool.nodes.iter().map(move |node| (node.as_str(), place)))
    }
}

impl MigPool {
    /// NVML's index of a GPU of the pool.
    pub fn gpu(&self, gpu: PoolGpu) -> Option<NvmlIndex> {
        self.gpus.iter().nth(gpu.index())
    }

    /// The GPUs that are in MIG mode for good, and in GRES `gpuos` only.
    pub fn fixed(&self) -> NvmlSet {
        self.gpus.minus(self.switchable)
    }

    /// Number in GRES `gpu` of a MIG-switchable GPU: gres.conf has them by NVML's index, without those in MIG mode for good.
    pub fn whole(&self, gpu: NvmlIndex) -> Option<GresGpu> {
        let before = self.fixed().iter().filter(|fixed| *fixed < gpu).count();
        let gres = GresGpu::new(gpu.index() - before)?;
        self.switchable.contains(gpu).then_some(gres)
    }

    /// Memory slices of each of its nodes, as GRES `gpuos` counts them. See [`STEERED_SLICES`].
    pub fn slices(&self, board: &MigBoard) -> usize {
        self.gpus.len() * usize::from(board.geometry.slices())
    }
}

pub(super) fn read(check: Check, raw: &RawMig) -> Result<MigConfig, ConfigError> {
    let mut config = MigConfig {
        foreign: check.word("foreign", &raw.foreign, &WORDS, Foreign::default())?,
        switch_after: check
            .seconds("switch-after", &raw.switch_after)?
            .unwrap_or(SWITCH_AFTER),
        switch_hold: check
            .seconds("switch-hold", &raw.switch_hold)?
            .unwrap_or(SWITCH_HOLD),
        ..MigConfig::default()
    };
    for table in &raw.board {
        let board = read_board(check, table)?;
        if config.board(&board.name).is_some() {
            let message = format!("board {} is described twice; remove one", board.name);
            return Err(check.error(table, message));
        }
        config.boards.push(board);
    }
    let mut owners: HashMap<String, usize> = HashMap::new();
    for (nth, table) in raw.pool.iter().enumerate() {
        let pool = read_pool(check, table, &config.boards)?;
        for node in &pool.nodes {
            let owner = owners.insert(node.clone(), nth);
            if owner.is_some_and(|owner| owner != nth) {
                let message = format!("node {node} is in two [[mig.pool]]; keep it in one");
                return Err(check.error(table, message));
            }
        }
        config.pools.push(pool);
    }
    Ok(config)
}

fn read_board(check: Check, table: &Spanned<RawMigBoard>) -> Result<MigBoard, ConfigError> {
    let header = "[[mig.board]]";
    let raw = table.get_ref();
    let key = check.need(table, header, "name", &raw.name)?;
    let name = check.name("name", key)?;
    // Slurm reads what follows a GRES name and begins with a digit as a count.
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        let form = "a name that begins with a letter, such as \"h100-80gb\"";
        return Err(check.refuse("name", key, quoted(&name), form));
    }
    let list = check.need(table, header, "profiles", &raw.profiles)?;
    let profiles = list.get_ref().iter();
    let profiles: Result<Vec<Profile>, _> = profiles.map(|raw| read_profile(check, raw)).collect();
    let geometry = Geometry::new(profiles?).map_err(|error| {
        let next = "write what gpuos discover prints on a node with this board";
        check.error(list, format!("profiles: {error}; {next}"))
    })?;
    Ok(MigBoard { name, geometry })
}

fn read_profile(check: Check, table: &Spanned<RawMigProfile>) -> Result<Profile, ConfigError> {
    let raw = table.get_ref();
    let need = |key: &str, value: &Option<Spanned<i64>>, most: i64| {
        let value = check.need(table, "a profile", key, value)?;
        check.int(key, &Some(value.clone()), 0..=most, 0)
    };
    let small = |key, value: &_| need(key, value, i64::from(u8::MAX)).map(|number| number as u8);
    let starts = check.need(table, "a profile", "starts", &raw.starts)?;
    let last = i64::from(MOST_SLICES) - 1;
    let form = format!("memory slices from 0 to {last}, such as [0, 4]");
    let starts = bytes(starts.get_ref(), last)
        .ok_or_else(|| check.refuse("starts", starts, format!("{:?}", starts.get_ref()), form))?;
    let engines = match &raw.engines {
        None => [0; ENGINES],
        Some(list) => {
            let counts = bytes(list.get_ref(), i64::from(u8::MAX));
            counts.and_then(|counts| counts.try_into().ok()).ok_or_else(|| {
                let form = "decoders, encoders, JPEG decoders and optical flow engines, such as [1, 0, 1, 0]";
                check.refuse("engines", list, format!("{:?}", list.get_ref()), form)
            })?
        }
    };
    Ok(Profile {
        id: need("id", &raw.id, i64::from(u32::MAX))? as u32,
        name: check
            .need(table, "a profile", "name", &raw.name)?
            .get_ref()
            .clone(),
        compute: small("compute", &raw.compute)?,
        memory_mib: need("memory-mib", &raw.memory_mib, 1 << 30)? as u64,
        most: small("most", &raw.most)?,
        size: small("size", &raw.size)?,
        starts,
        engines,
    })
}

/// Numbers from 0 to `most`, and no more of them than a GPU has profiles.
fn bytes(list: &[i64], most: i64) -> Option<Vec<u8>> {
    let byte = |&number: &i64| u8::try_from(number).ok().filter(|_| number <= most);
    let short = list.len() <= MOST_PROFILES;
    short.then(|| list.iter().map(byte).collect()).flatten()
}

fn read_pool(
    check: Check,
    table: &Spanned<RawMigPool>,
    boards: &[MigBoard],
) -> Result<MigPool, ConfigError> {
    let header = "[[mig.pool]]";
    let raw = table.get_ref();
    let list = check.need(table, header, "nodes", &raw.nodes)?;
    let mut nodes = hosts(check, list, list.get_ref())?;
    nodes.sort_unstable();
    nodes.dedup();
    let gpus = check.need(table, header, "gpus", &raw.gpus)?;
    let set = parse_gpus(gpus.get_ref()).filter(|set| !set.is_empty());
    let set = set.ok_or_else(|| {
        let last = MAX_GPUS - 1;
        let form = format!("NVML indexes from 0 to {last}, such as \"0,4-7\"");
        check.refuse("gpus", gpus, quoted(gpus.get_ref()), form)
    })?;
    let switchable = match &raw.switchable {
        None => GpuSet::EMPTY,
        Some(list) => {
            let switchable =
                parse_gpus(list.get_ref()).filter(|switchable| switchable.minus(set).is_empty());
            switchable.ok_or_else(|| {
                let form = format!("some of `gpus` of this pool, {set}");
                check.refuse("switchable", list, quoted(list.get_ref()), form)
            })?
        }
    };
    let name = check.need(table, header, "board", &raw.board)?;
    let board = boards
        .iter()
        .position(|board| board.name == *name.get_ref());
    let board = board.ok_or_else(|| {
        let known: Vec<&str> = boards.iter().map(|board| board.name.as_str()).collect();
        let form = match known.is_empty() {
            true => "a board, and describe it with [[mig.board]]".into(),
            false => format!("one of the boards described: {}", known.join(", ")),
        };
        check.refuse("board", name, quoted(name.get_ref()), form)
    })?;
    Ok(MigPool {
        nodes,
        gpus: NvmlSet(set),
        switchable: NvmlSet(switchable),
        board,
        place: check.place(list),
    })
}

#[cfg(test)]
mod tests {
    use crate::gpuos_toml::{Config, MigConfig};
    use gpuos_core::mig::reconcile::Foreign;
    use gpuos_model::gpu_index::{GresGpu, NvmlIndex, NvmlSet, PoolGpu};
    use gpuos_model::gpuset::GpuSet;

    const BOARD: &str = "[[mig.board]]\nname = \"a30\"\nprofiles = [\n  \
        { id = 14, name = \"1g.6gb\", compute = 1, memory-mib = 5952, most = 4, size = 1, starts = [0, 1, 2, 3] },\n  \
        { id = 0, name = \"4g.24gb\", compute = 4, memory-mib = 24000, most = 1, size = 4, starts = [0], engines = [4, 0, 1, 1] },\n]\n";

    fn read(text: &str) -> Result<MigConfig, String> {
        let config = Config::parse(text, "gpuos.toml");
        config
            .map(|config| config.mig)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_pool_leads_from_node_to_board() {
        let pool = "[[mig.pool]]\nnodes = \"n[2-10]\"\ngpus = \"0,4-7\"\nboard = \"a30\"\n";
        let config = read(&format!("[mig]\nforeign = \"destroy\"\n{BOARD}{pool}")).unwrap();
        assert_eq!(config.foreign, Foreign::Destroy);
        let (pool, board) = config.pool_of("n10").unwrap();
        assert_eq!(pool.gpus, NvmlSet(GpuSet(0b1111_0001)));
        let gpu = |nth| pool.gpu(PoolGpu::new(nth).unwrap());
        assert_eq!(
            [gpu(0), gpu(1), gpu(5)],
            [NvmlIndex::new(0), NvmlIndex::new(4), None]
        );
        assert_eq!((board.name.as_str(), board.geometry.slices()), ("a30", 4));
        assert_eq!(board.geometry.profiles()[0].engines, [0; 4]);
        assert_eq!(board.geometry.profiles()[1].engines, [4, 0, 1, 1]);
        assert_eq!(pool.slices(board), 20);
        for node in ["n1", "n11", "n", "N2"] {
            assert!(config.pool_of(node).is_none(), "{node}");
        }
        assert_eq!(config.board("A30"), Some(board));
        assert_eq!(read("").unwrap(), MigConfig::default());
    }

    #[test]
    fn mig_switchable_gpus_have_numbers_in_gres_gpu() {
        let pool = "[[mig.pool]]\nnodes = \"n1\"\ngpus = \"1,4-7\"\nswitchable = \"6-7\"\nboard = \"a30\"\n";
        let config = read(&format!("{BOARD}{pool}")).unwrap();
        assert_eq!((config.switch_after, config.switch_hold), (60, 600));
        let (pool, _) = config.pool_of("n1").unwrap();
        assert_eq!(pool.fixed().to_string(), "1,4-5");
        let whole = [0, 1, 5, 6, 7].map(|gpu| pool.whole(NvmlIndex::new(gpu).unwrap()));
        let whole = whole.map(|gpu| gpu.map(GresGpu::index));
        // GRES gpu has 0, 2, 3, 6, 7.
        assert_eq!(whole, [None, None, None, Some(3), Some(4)]);
        let times = "[mig]\nswitch-after = \"5s\"\nswitch-hold = \"1h\"\n";
        let config = read(&format!("{times}{BOARD}{pool}", pool = "")).unwrap();
        assert_eq!((config.switch_after, config.switch_hold), (5, 3600));
        for (text, why) in [
            ("switchable = \"3\"", "some of `gpus` of this pool, 1,4"),
            ("switchable = \"x\"", "some of `gpus` of this pool, 1,4"),
        ] {
            let pool = "[[mig.pool]]\nnodes = \"n1\"\ngpus = \"1,4\"\nboard = \"a30\"\n";
            let error = read(&format!("{BOARD}{pool}{text}\n")).unwrap_err();
            assert!(error.contains(":11:14") && error.contains(why), "{error}");
        }
    }

    /// More slices than gpuos steers are no error: see the docs of `STEERED_SLICES`.
    #[test]
    fn a_node_may_have_more_slices_than_are_steered() {
        let pool = "[[mig.pool]]\nnodes = \"n1\"\ngpus = \"0-63\"\nboard = \"a30\"\n";
        let config = read(&format!("{BOARD}{pool}")).unwrap();
        let (pool, board) = config.pool_of("n1").unwrap();
        assert_eq!(pool.slices(board), 256);
    }

    #[test]
    fn nodes_of_a_pool_that_slurm_lacks_are_told() {
        let pool = "[[mig.pool]]\nnodes = \"n[1-2]\"\ngpus = \"0\"\nboard = \"a30\"\n";
        let config = Config::parse(&format!("{BOARD}{pool}"), "gpuos.toml").unwrap();
        let strange = config.unknown_nodes(&["n1"]);
        assert_eq!(strange.len(), 1);
        assert_eq!(
            strange[0].to_string(),
            "gpuos.toml:8:9: node n2 is not in slurm.conf"
        );
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let pool = |nodes: &str, gpus: &str, board: &str| {
            format!("[[mig.pool]]\nnodes = \"{nodes}\"\ngpus = \"{gpus}\"\nboard = \"{board}\"\n")
        };
        let good = pool("n1", "0", "a30");
        let cases = [
            (
                "[mig]\nforeign = \"kill\"".into(),
                ":2:11",
                "\"leave\" or \"destroy\"",
            ),
            (
                "[mig]\npolicy = 1".into(),
                ":2:1",
                "there is no key `policy`",
            ),
            (
                format!("{BOARD}{BOARD}"),
                ":7:1",
                "board a30 is described twice",
            ),
            (BOARD.replace("a30", "80gb"), ":2:8", "begins with a letter"),
            (
                BOARD.replace("size = 1, ", ""),
                ":4:3",
                "a profile has no size",
            ),
            (
                BOARD.replace("[0, 1, 2, 3]", "[0, 16]"),
                ":4:",
                "memory slices from 0 to 15",
            ),
            (
                BOARD.replace("[4, 0, 1, 1]", "[4]"),
                ":5:",
                "decoders, encoders",
            ),
            (
                BOARD.replace("most = 4", "most = 5"),
                ":3:12",
                "MIG profile 14 (1g.6gb): 5 instances cannot be",
            ),
            (
                BOARD.replace("id = 0", "id = 14"),
                ":3:12",
                "have the same id or name",
            ),
            (
                BOARD.replace("id = 0", "memory = 0"),
                ":5:",
                "there is no key `memory`",
            ),
            (
                "[[mig.board]]\nname = \"a30\"".into(),
                ":1:1",
                "[[mig.board]] has no profiles",
            ),
            (
                format!("{BOARD}{}", pool("n[1-", "0", "a30")),
                ":8:9",
                "n[1-",
            ),
            (
                format!("{BOARD}{}", pool("n1", "4-", "a30")),
                ":9:8",
                "NVML indexes from 0 to 63",
            ),
            (
                format!("{BOARD}{}", pool("n1", "64", "a30")),
                ":9:8",
                "NVML indexes from 0 to 63",
            ),
            (
                format!("{BOARD}{}", pool("n1", "-", "a30")),
                ":9:8",
                "NVML indexes from 0 to 63",
            ),
            (
                format!("{BOARD}{}", pool("n1", "0", "a100")),
                ":10:9",
                "one of the boards described: a30",
            ),
            (good.clone(), ":4:9", "describe it with [[mig.board]]"),
            (
                format!("{BOARD}{good}{good}"),
                ":11:1",
                "node n1 is in two [[mig.pool]]",
            ),
        ];
        for (text, place, wanted) in cases {
            let error = read(&text).unwrap_err();
            assert!(
                error.contains(wanted) && error.starts_with(&format!("gpuos.toml{place}")),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn renamed_keys_are_told_with_their_new_names() {
        let pool =
            "[[mig.pool]]\nnodes = \"n1\"\ngpus = \"1,4\"\nboard = \"a30\"\nmoving = \"4\"\n";
        let error = read(&format!("{BOARD}{pool}")).unwrap_err();
        let told = "the key `moving` is called `switchable` now: write switchable = ...";
        assert!(error.contains(":11:1") && error.contains(told), "{error}");
        for (old, new) in [("move-after", "switch-after"), ("move-hold", "switch-hold")] {
            let error = read(&format!("[mig]\n{old} = \"1m\"\n")).unwrap_err();
            let told = format!("the key `{old}` is called `{new}` now");
            assert!(error.contains(":2:1") && error.contains(&told), "{error}");
        }
        // A table that never had it says what it has.
        let error = read("[health]\nmoving = \"4\"\n").unwrap_err();
        assert!(error.contains("there is no key `moving`"), "{error}");
    }
}
