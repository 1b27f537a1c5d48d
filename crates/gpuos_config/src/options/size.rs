//! Sizes of memory as Slurm's `--mem` has them, in binary units: `512M`, `16G`, `2T`, with `B` or `iB` behind the unit as people like.
use gpuos_model::words::not_understood;

pub(crate) use gpuos_model::words::{mib_of as parse, mib_text as text};

/// The smallest size of a GPU's memory in MiB: a block, which is what memory is mapped in.
const LEAST_MIB: u32 = 2;

/// The largest in MiB, 16 TiB; own choice.
const MOST_MIB: u32 = 16 << 20;

/// MiB of a GPU's memory, in lower case.
///
/// # Errors
/// Why it is no such size.
pub(super) fn of_gpu(word: &str) -> Result<u32, String> {
    let unit = |c: char| !c.is_ascii_digit();
    match parse(word) {
        None if word.ends_with('%') => Err(format!(
            "{}: a size is no share, as GPUs of a cluster may differ",
            not_understood(word)
        )),
        Some(mib @ LEAST_MIB..=MOST_MIB) => Ok(mib),
        Some(_) => Err("memory of a GPU is 2M to 16T".into()),
        None if word.ends_with(unit) || word.is_empty() => Err(not_understood(word)),
        None => Err(format!(
            "{}: the unit M, G or T is missing",
            not_understood(word)
        )),
    }
}
