//! Sizes of memory as Slurm's `--mem` has them, in binary units: `512M`, `16G`, `2T`.

/// Units, the largest first, and their MiB.
const UNITS: [(char, u32); 3] = [('t', 1 << 20), ('g', 1 << 10), ('m', 1)];

/// MiB of a size in lower case; `None`: it is none, or more than fits.
pub(crate) fn parse(word: &str) -> Option<u32> {
    UNITS.iter().find_map(|(unit, mib)| {
        let number = word.strip_suffix(*unit)?;
        let digits = (1..=9).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
        let number: u64 = number.parse().ok().filter(|_| digits)?;
        u32::try_from(number * u64::from(*mib)).ok()
    })
}

/// The text form of so many MiB, in the largest unit that has it whole.
pub(crate) fn text(mib: u32) -> String {
    let whole = UNITS.iter().find(|(_, unit)| mib.is_multiple_of(*unit));
    let (unit, of) = whole.unwrap_or(&('m', 1));
    format!("{}{}", mib / of, unit.to_ascii_uppercase())
}
