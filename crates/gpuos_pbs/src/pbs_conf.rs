//! pbs.conf: what PBS runs with on a host.

/// Where PBS keeps its files unless pbs.conf says otherwise.
pub const HOME: &str = "/var/spool/pbs";

/// The value of a key, without its quotes. Of a key that stands there twice the last one counts, as with PBS.
///
/// ```
/// let text = "PBS_EXEC=/usr\nPBS_EXEC=\"/opt/pbs\"\n";
/// assert_eq!(gpuos_pbs::pbs_conf::value(text, "PBS_EXEC"), Some("/opt/pbs"));
/// ```
pub fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = text
        .lines()
        .rev()
        .filter_map(|line| line.trim().split_once('='));
    let (_, value) = pairs.find(|(known, _)| known.trim() == key)?;
    Some(value.trim().trim_matches(['"', '\'']))
}
