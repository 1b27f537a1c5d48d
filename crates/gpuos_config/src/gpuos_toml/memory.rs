//! `[memory]`: whether jobs can have more memory than their GPUs and share GPUs in turns with their memory, and when a node is short of host memory.
use gpuos_model::reading::{Check, ConfigError, Place};
use gpuos_placement::cost::Grant;
use toml::Spanned;

use super::memory_share::{self, MemoryShare};
use super::raw::{RawMemory, RawMemoryShare};

/// `[memory]` and `[[memory-share]]`. By default the option of jobs is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryConfig {
    /// Whether jobs can have `--gpuos-mem`.
    pub oversubscribe: bool,
    /// The largest size, in percent of the memory of a GPU.
    pub most_percent: u32,
    /// What of a GPU's memory programs do not get for their own data, in MiB: the driver and the contexts of programs take it. So much
    /// more of a size is counted as host memory.
    pub reserve_mib: u32,
    /// Jobs that share a GPU in turns with its memory, at most; 0: jobs cannot.
    pub turns: u32,
    /// A turn is so many seconds long at least, if the job has work for so long; `None`: what gpuosd's flag says.
    pub turn_seconds: Option<u32>,
    /// Work that a program has given to its GPU may go on for so many seconds after its turn, while others wait.
    pub switch_seconds: u32,
    /// Whether a program in turns that cannot be moved while it runs is parked by the driver's own checkpoint calls.
    pub driver_checkpoint: bool,
    /// A node is short of host memory when so much of it is used, in percent, ...
    pub pressure_begins: u32,
    /// ... and until no more than this is.
    pub pressure_ends: u32,
    /// It also is when everything that runs on it waits for memory for so much of the time, in percent.
    pub stalled_begins: u32,
    /// What of the link between GPU and host moves may take for which nobody waits, in percent; the rest is kept for turns.
    pub link_ahead: u32,
    /// Who may have how much of a node's host memory; the first that is of a job counts.
    pub shares: Vec<MemoryShare>,
}

impl Default for MemoryConfig {
    fn default() -> MemoryConfig {
        MemoryConfig {
            oversubscribe: false,
            most_percent: 400,
            reserve_mib: 1024,
            turns: 0,
            turn_seconds: None,
            switch_seconds: 600,
            driver_checkpoint: false,
            pressure_begins: 92,
            pressure_ends: 85,
            stalled_begins: 10,
            link_ahead: 40,
            shares: Vec::new(),
        }
    }
}

impl MemoryConfig {
    /// MiB of host memory that a program needs for each GPU of `gpu_mib` MiB, where it may use `mib` of both together.
    pub fn host_share(&self, mib: u64, gpu_mib: u64) -> u64 {
        let reserve_mib = self.reserve_mib.into();
        Grant { mib, reserve_mib }.outside_mib(gpu_mib)
    }

    /// The largest size in MiB that a job in turns can have, where a GPU has so many: contexts of programs stay on it while others have it.
    pub fn most_in_turns_mib(&self, gpu_mib: u64) -> u64 {
        gpu_mib.saturating_sub(self.reserve_mib.into())
    }

    /// The share that counts for a job.
    pub fn share_of(
        &self,
        account: &str,
        partitions: &[String],
        qos: &str,
    ) -> Option<&MemoryShare> {
        let mut shares = self.shares.iter();
        shares.find(|share| share.is_of(account, partitions, qos))
    }

    /// The largest size in MiB where a GPU has so many.
    pub fn most_mib(&self, gpu_mib: u64) -> u64 {
        gpu_mib.saturating_mul(self.most_percent.into()) / 100
    }
}

/// What is read, and partitions that have to exist.
type Read = (MemoryConfig, Vec<(String, Place)>);

pub(super) fn read(
    check: Check,
    raw: &RawMemory,
    shares: &[Spanned<RawMemoryShare>],
) -> Result<Read, ConfigError> {
    let (shares, partitions) = memory_share::read(check, shares)?;
    let usual = MemoryConfig::default();
    let int = |key, value, range, default: u32| {
        let number = check.int(key, value, range, default.into())?;
        Ok::<u32, ConfigError>(number as u32)
    };
    let percent = |key, value, default| int(key, value, 1..=100, default);
    let config = MemoryConfig {
        oversubscribe: raw.oversubscribe.unwrap_or(usual.oversubscribe),
        most_percent: int(
            "most-percent",
            &raw.most_percent,
            100..=10_000,
            usual.most_percent,
        )?,
        reserve_mib: int(
            "reserve-mib",
            &raw.reserve_mib,
            0..=65_536,
            usual.reserve_mib,
        )?,
        turns: int("turns", &raw.turns, 0..=16, usual.turns)?,
        turn_seconds: match &raw.turn_seconds {
            Some(_) => Some(int("turn-seconds", &raw.turn_seconds, 1..=3600, 30)?),
            None => None,
        },
        switch_seconds: int(
            "switch-seconds",
            &raw.switch_seconds,
            10..=86_400,
            usual.switch_seconds,
        )?,
        driver_checkpoint: raw.driver_checkpoint.unwrap_or(usual.driver_checkpoint),
        pressure_begins: percent(
            "pressure-begins",
            &raw.pressure_begins,
            usual.pressure_begins,
        )?,
        pressure_ends: percent("pressure-ends", &raw.pressure_ends, usual.pressure_ends)?,
        stalled_begins: percent("stalled-begins", &raw.stalled_begins, usual.stalled_begins)?,
        link_ahead: percent("link-ahead", &raw.link_ahead, usual.link_ahead)?,
        shares,
    };
    if config.pressure_ends >= config.pressure_begins {
        let message = format!(
            "pressure ends at {} % and begins at {} %: between the two there has to be room, or it begins and ends all the time",
            config.pressure_ends, config.pressure_begins
        );
        let at = raw.pressure_ends.as_ref().or(raw.pressure_begins.as_ref());
        return match at {
            Some(at) => Err(check.error(at, message)),
            None => Ok((config, partitions)),
        };
    }
    Ok((config, partitions))
}

#[cfg(test)]
mod tests {
    use super::MemoryConfig;
    use crate::gpuos_toml::Config;

    fn read(text: &str) -> Result<MemoryConfig, String> {
        let config = Config::parse(&format!("[memory]\n{text}\n"), "gpuos.toml");
        let config = config.map(|config| config.memory);
        config.map_err(|e| e.to_string())
    }

    #[test]
    fn jobs_have_no_more_memory_than_their_gpus_unless_the_site_says_so() {
        assert_eq!(read("").unwrap(), MemoryConfig::default());
        assert!(!MemoryConfig::default().oversubscribe);
        let own = read("oversubscribe = true\nmost-percent = 150\nreserve-mib = 0").unwrap();
        assert_eq!((own.oversubscribe, own.most_mib(1000)), (true, 1500));
        assert_eq!(MemoryConfig::default().turns, 0);
        let own = read("turns = 3\nreserve-mib = 100").unwrap();
        assert_eq!((own.turns, own.most_in_turns_mib(1000)), (3, 900));
        assert_eq!((own.turn_seconds, own.switch_seconds), (None, 600));
        let own = read("turn-seconds = 90\nswitch-seconds = 30").unwrap();
        assert_eq!((own.turn_seconds, own.switch_seconds), (Some(90), 30));
        assert!(!own.driver_checkpoint);
        assert!(read("driver-checkpoint = true").unwrap().driver_checkpoint);
    }

    #[test]
    fn what_the_driver_takes_is_counted_as_host_memory() {
        let config = MemoryConfig {
            reserve_mib: 1024,
            ..MemoryConfig::default()
        };
        for (mib, gpu, share) in [
            (120 << 10, 80 << 10, (40 << 10) + 1024),
            (80 << 10, 80 << 10, 1024),
            (79 << 10, 80 << 10, 0),
            (4096, 512, 4096),
            (u64::MAX, 0, u64::MAX),
        ] {
            assert_eq!(config.host_share(mib, gpu), share, "{mib} {gpu}");
        }
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, wanted) in [
            ("most-percent = 99", "from 100 to 10000"),
            ("reserve-mib = -1", "from 0 to 65536"),
            ("oversubscribe = 1", "true or false"),
            ("turns = 17", "from 0 to 16"),
            ("turns = -1", "from 0 to 16"),
            ("turns = true", "turns"),
            ("turn-seconds = 0", "from 1 to 3600"),
            ("turn-seconds = \"30s\"", "turn-seconds"),
            ("switch-seconds = 9", "from 10 to 86400"),
            ("driver-checkpoint = 1", "true or false"),
            ("enabled = true", "there is no key"),
            ("pressure-begins = 101", "from 1 to 100"),
            ("pressure-begins = 80", "begins at 80 %"),
            ("pressure-ends = 92", "begins at 92 %"),
            ("stalled-begins = 0", "from 1 to 100"),
        ] {
            let error = read(text).unwrap_err();
            let placed = error.contains("gpuos.toml:2:");
            assert!(error.contains(wanted) && placed, "{text}: {error}");
        }
    }
}
