//! `[memory]`: whether jobs can have more memory than their GPUs, and share GPUs in turns with their memory.
use gpuos_model::reading::{Check, ConfigError};

use super::raw::RawMemory;

/// `[memory]`. By default the option of jobs is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
}

impl Default for MemoryConfig {
    fn default() -> MemoryConfig {
        MemoryConfig {
            oversubscribe: false,
            most_percent: 400,
            reserve_mib: 1024,
            turns: 0,
        }
    }
}

impl MemoryConfig {
    /// MiB of host memory that a program needs for each GPU of `gpu_mib` MiB, where it may use `mib` of both together.
    pub fn host_share(&self, mib: u64, gpu_mib: u64) -> u64 {
        mib.saturating_sub(gpu_mib.saturating_sub(self.reserve_mib.into()))
    }

    /// The largest size in MiB that a job in turns can have, where a GPU has so many: contexts of programs stay on it while others have it.
    pub fn most_in_turns_mib(&self, gpu_mib: u64) -> u64 {
        gpu_mib.saturating_sub(self.reserve_mib.into())
    }

    /// The largest size in MiB where a GPU has so many.
    pub fn most_mib(&self, gpu_mib: u64) -> u64 {
        gpu_mib.saturating_mul(self.most_percent.into()) / 100
    }
}

pub(super) fn read(check: Check, raw: &RawMemory) -> Result<MemoryConfig, ConfigError> {
    let usual = MemoryConfig::default();
    let int = |key, value, range, default: u32| {
        let number = check.int(key, value, range, default.into())?;
        Ok::<u32, ConfigError>(number as u32)
    };
    Ok(MemoryConfig {
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
    })
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
            ("enabled = true", "there is no key"),
        ] {
            let error = read(text).unwrap_err();
            let placed = error.contains("gpuos.toml:2:");
            assert!(error.contains(wanted) && placed, "{text}: {error}");
        }
    }
}
