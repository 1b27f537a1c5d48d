//! Which GPUs of a host are linked by NVLink, where an administrator names sets of them and nobody says how many links there are.

/// NVLinks that a pair of GPUs counts as having where it is only known that they are linked: as a bridge has at least.
const LINKS: i32 = 4;

/// Rows of links as gres.conf has them, by the names of the sets that the GPUs are in; an empty name is that of no set. `None`: no two GPUs are linked.
pub fn rows(sets: &[&str]) -> Option<Vec<i32>> {
    let count = sets.len();
    let linked = |a: usize, b: usize| !sets[a].is_empty() && sets[a] == sets[b];
    let pairs = || (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
    let links = pairs().any(|(a, b)| a != b && linked(a, b));
    let link = |(a, b)| match a == b {
        true => -1,
        false if linked(a, b) => LINKS,
        false => 0,
    };
    links.then(|| pairs().map(link).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_of_one_set_are_linked_and_those_of_none_are_not() {
        let own = -1;
        assert_eq!(
            rows(&["a", "a", ""]),
            Some(vec![own, LINKS, 0, LINKS, own, 0, 0, 0, own])
        );
        assert_eq!(rows(&["a", "b", ""]), None);
        assert_eq!(rows(&["", ""]), None);
    }
}
