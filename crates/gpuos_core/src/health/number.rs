//! Numbers of a node's GPUs. Those of GRES gpu have Slurm's index; those of a `[[mig.pool]]` are none of GRES gpu and are
//! told apart for people as `mig4`, where 4 is NVML's index, and in state and messages as [`POOL`] + 4.
//!
//! Both are what the administrator wrote: gres.conf and `gpus = "4-7"`. A number that counted on after those of GRES gpu
//! would be another one wherever gpuosd and slurmctld do not agree how many these are.
use gpuos_model::gpuset::MAX_GPUS;

/// The number of a pool's GPU with NVML's index 0.
pub const POOL: u8 = MAX_GPUS as u8;
/// How people call a GPU of a pool, before NVML's index.
const WORD: &str = "mig";

/// The number of a pool's GPU. `None`: no node has so many.
pub fn of_pool(nvml: u8) -> Option<u8> {
    (usize::from(nvml) < MAX_GPUS).then(|| POOL + nvml)
}

/// NVML's index of a pool's GPU; `None`: it is one of GRES gpu.
pub fn pool_index(gpu: u8) -> Option<u8> {
    gpu.checked_sub(POOL)
}

/// Whether it is a GPU of a pool.
pub fn is_of_pool(gpu: u8) -> bool {
    gpu >= POOL
}

/// The name for people: `3`, `mig4`.
pub fn name(gpu: u8) -> String {
    match pool_index(gpu) {
        Some(nvml) => format!("{WORD}{nvml}"),
        None => gpu.to_string(),
    }
}

/// What [`name`] gives, read; `None`: it is no such name.
pub fn parse(name: &str) -> Option<u8> {
    let (digits, first) = match name.strip_prefix(WORD) {
        Some(digits) => (digits, POOL),
        None => (name, 0),
    };
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let number = digits.parse::<u8>().ok().filter(|_| plain)?;
    (usize::from(number) < MAX_GPUS).then_some(first + number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_numbers_and_nothing_else_does() {
        for gpu in 0..2 * POOL {
            assert_eq!(parse(&name(gpu)), Some(gpu));
        }
        assert_eq!((name(3), name(POOL + 4)), ("3".into(), "mig4".into()));
        assert_eq!((of_pool(63), of_pool(64)), (Some(127), None));
        assert_eq!((pool_index(68), pool_index(4)), (Some(4), None));
        for wrong in [
            "", "mig", "64", "mig64", "mig-1", "+3", "MIG4", "mig4 ", "300",
        ] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
