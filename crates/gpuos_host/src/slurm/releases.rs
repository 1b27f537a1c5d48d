//! Which Slurm releases the plugins have a layout for.

/// Releases, one a line, oldest first: the same facts as the plugins' table.
const TABLE: &str = include_str!("../../data/releases.txt");

/// The releases, oldest first.
pub fn known() -> impl Iterator<Item = &'static str> {
    TABLE
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Whether the built-in table has this exact release.
pub fn is_known(release: &str) -> bool {
    known().any(|known| known == release)
}

/// The numbers of a release, to compare by; `None` when it is not three numbers.
pub fn numbers(release: &str) -> Option<[u32; 3]> {
    let mut parts = release.split('.').map(|part| part.parse().ok());
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_that_of_the_plugins() {
        let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../slurm_ffi/data");
        let read = std::fs::read_to_string(data.join("versions.txt")).unwrap();
        let derived = std::fs::read_to_string(data.join("derived.tsv")).unwrap();
        let mut want: Vec<&str> = read.lines().filter(|l| !l.starts_with('#')).collect();
        for line in derived.lines().filter(|l| !l.starts_with('#')).skip(1) {
            let release = line.split('\t').next().unwrap();
            if !want.contains(&release) {
                want.push(release);
            }
        }
        let ours: Vec<&str> = known().collect();
        assert_eq!(ours, want);
        assert!(ours.iter().all(|r| numbers(r).is_some()));
        assert!(is_known("22.05.8") && !is_known("22.05"));
    }
}
