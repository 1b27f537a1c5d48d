//! How Slurm numbers the node's GPUs, and which of them it does not count: those of a pool that are in MIG mode for good,
//! whose slices are GRES `gpuos`.

use std::fmt;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use gpuos_config::gpuos_toml::{MigConfig, MigPool};
use gpuos_model::gpu_index::NvmlSet;
use gpuos_workload::numbering::GpuNumbering;

type Read = Box<dyn Fn() -> Result<GpuNumbering, String> + Send + Sync>;

/// What gres.conf says now, and the pool as gpuos.toml was read last.
pub struct Numbering {
    read: Read,
    divided: Mutex<Divided>,
    known: Condvar,
}

/// The GPUs of the pool that are in MIG mode for good, and the MIG-switchable ones.
type Sets = (NvmlSet, NvmlSet);

#[derive(Default)]
struct Divided {
    /// `None` before gpuos.toml was read for the first time.
    now: Option<Sets>,
    /// As a gpuosd before this one knew them.
    before: Sets,
    /// Nobody ever knew them.
    guess: bool,
    /// How often gres.conf may have changed with MIG-switchable GPUs.
    renewed: u64,
    /// How often the workload manager has told another order by itself.
    told: u64,
}

impl fmt::Debug for Numbering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Numbering")
    }
}

impl Numbering {
    /// Reads gres.conf so; the error is a sentence.
    pub fn new(read: Read) -> Numbering {
        Numbering {
            read,
            divided: Mutex::default(),
            known: Condvar::new(),
        }
    }

    /// The order of gres.conf.
    ///
    /// # Errors
    /// It cannot be read: a sentence.
    pub fn order(&self) -> Result<GpuNumbering, String> {
        (self.read)()
    }

    /// What a gpuosd before this one knew, for a gpuos.toml that cannot be read. Without it a GPU of the pool would be
    /// taken for one of Slurm's, and its faults for those of another.
    pub fn remembered(&self, fixed: NvmlSet, switchable: NvmlSet) {
        let mut divided = self.divided.lock().unwrap_or_else(PoisonError::into_inner);
        divided.before = (fixed, switchable);
    }

    /// gpuos.toml was read. `None`: it could not be; what was known before stays, and where nothing was, no GPU is in
    /// a pool, which [`Numbering::is_guess`] tells.
    pub fn configured(&self, node: &str, config: Option<&MigConfig>) {
        let pool = config.map(|config| config.pool_of(node));
        let sets = |pool: &MigPool| (pool.fixed(), pool.switchable);
        let pool = pool.map(|pool| pool.map_or(Sets::default(), |(pool, _)| sets(pool)));
        let mut divided = self.divided.lock().unwrap_or_else(PoisonError::into_inner);
        let nothing = divided.now.is_none() && divided.before == Sets::default();
        divided.guess = pool.is_none() && (divided.guess || nothing);
        let known = divided.now.unwrap_or(divided.before);
        let now = pool.unwrap_or(known);
        if !now.1.is_empty() {
            divided.renewed += 1;
        }
        divided.now = Some(now);
        self.known.notify_all();
    }

    /// Whether gpuos.toml was never read here: a GPU in MIG mode may be in a pool then.
    pub fn is_guess(&self) -> bool {
        let divided = self.divided.lock().unwrap_or_else(PoisonError::into_inner);
        divided.guess
    }

    /// Waits so long; with a guess only until there is none any more, and never beyond [`Numbering::told`].
    pub fn rest(&self, pause: Duration) {
        let divided = self.divided.lock().unwrap_or_else(PoisonError::into_inner);
        let (guess, told) = (divided.guess, divided.told);
        let stays = |now: &mut Divided| (now.guess || !guess) && now.told == told;
        drop(self.known.wait_timeout_while(divided, pause, stays));
    }

    /// What is known of gres.conf does not fit: it is to be read again.
    pub fn renew(&self) {
        let mut divided = self.divided.lock().unwrap_or_else(PoisonError::into_inner);
        divided.renewed += 1;
    }

    /// The workload manager has told another order by itself: it is to be read again, and at once.
    pub fn told(&self) {
        let mut divided = self.divided.lock().unwrap_or_else(PoisonError::into_inner);
        divided.renewed += 1;
        divided.told += 1;
        self.known.notify_all();
    }

    /// [`Numbering::divided`], and a count that grows when gres.conf is to be read again.
    pub fn at(&self) -> (NvmlSet, u64) {
        let fixed = self.divided();
        let divided = self.divided.lock().unwrap_or_else(PoisonError::into_inner);
        (fixed, divided.renewed)
    }

    /// The GPUs of the node's pool that are in MIG mode for good, by NVML's index. It waits until gpuos.toml was read:
    /// before, a GPU of a pool would be taken for one of Slurm's.
    pub fn divided(&self) -> NvmlSet {
        self.sets().0
    }

    /// The MIG-switchable ones, which Slurm counts as GPUs, too. It waits likewise.
    pub fn switchable(&self) -> NvmlSet {
        self.sets().1
    }

    fn sets(&self) -> Sets {
        let divided = self.divided.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self
            .known
            .wait_while(divided, |divided| divided.now.is_none());
        let known = known.unwrap_or_else(PoisonError::into_inner);
        known.now.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use gpuos_config::gpuos_toml::Config;
    use gpuos_model::gpu_index::NvmlIndex;

    use super::*;

    fn config(nodes: &str, gpus: &str) -> MigConfig {
        let text = format!(
            "[[mig.board]]\nname = \"b\"\nprofiles = [{{ id = 0, name = \"7g.80gb\", compute = 7, \
             memory-mib = 80000, most = 1, size = 8, starts = [0] }}]\n\
             [[mig.pool]]\nnodes = \"{nodes}\"\ngpus = \"{gpus}\"\nboard = \"b\"\n"
        );
        Config::parse(&text, "gpuos.toml").unwrap().mig
    }

    #[test]
    fn the_pool_that_was_read_last_counts() {
        let numbering = Numbering::new(Box::new(|| Err("no gres.conf".into())));
        numbering.configured("n1", None);
        assert_eq!(numbering.divided(), NvmlSet::EMPTY);
        assert!(numbering.is_guess());
        let again = Numbering::new(Box::new(|| Err("no gres.conf".into())));
        again.remembered(
            NvmlSet::EMPTY.with(NvmlIndex::new(5).unwrap()),
            NvmlSet::EMPTY,
        );
        again.configured("n1", None);
        assert_eq!(again.divided().to_string(), "5");
        assert!(!again.is_guess());
        numbering.configured("n1", Some(&config("n1", "4-7")));
        assert_eq!(numbering.divided().to_string(), "4-7");
        // A file that cannot be read changes nothing.
        numbering.configured("n1", None);
        assert!(!numbering.is_guess());
        assert_eq!(numbering.divided().to_string(), "4-7");
        numbering.configured("n1", Some(&config("n2", "0-7")));
        assert_eq!(numbering.divided(), NvmlSet::EMPTY);
        // A MIG-switchable GPU is one that Slurm counts.
        let switchable = config("n1", "4-7\"\nswitchable = \"6-7");
        numbering.configured("n1", Some(&switchable));
        assert_eq!(numbering.divided().to_string(), "4-5");
        assert_eq!(numbering.switchable().to_string(), "6-7");
    }
}
