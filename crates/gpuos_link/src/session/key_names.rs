//! Which keys the movers of two nodes make checkpoints with: what one of them makes the other has to be able to read.

use std::fmt;

/// Keys with which a node makes checkpoints, at most.
const MAKES: usize = 2;
/// Keys that a node knows, at most. Those past it are not told, and count as not known.
const KNOWS: usize = 64;
/// Bytes of all names.
pub(super) const BYTES: usize = 8 * (MAKES + KNOWS);

/// Names of keys, which say nothing about them; 0: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyNames {
    makes: [u64; MAKES],
    knows: [u64; KNOWS],
}

impl Default for KeyNames {
    /// None: it makes nothing, and goes with all others.
    fn default() -> KeyNames {
        KeyNames {
            makes: [0; MAKES],
            knows: [0; KNOWS],
        }
    }
}

/// Two nodes have different keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtherKeys {
    /// With these the other node makes checkpoints, and this one has them not.
    pub theirs: Vec<u64>,
    /// With these this node does, and the other one has them not.
    pub ours: Vec<u64>,
}

impl KeyNames {
    /// With the first of them this node makes checkpoints, and the others it knows.
    pub fn new(makes: &[[u8; 8]], knows: &[[u8; 8]]) -> KeyNames {
        let mut names = KeyNames::default();
        let numbers = |from: &[[u8; 8]], to: &mut [u64]| {
            for (name, place) in from.iter().zip(to) {
                *place = u64::from_be_bytes(*name);
            }
        };
        numbers(makes, &mut names.makes);
        numbers(knows, &mut names.knows);
        names
    }

    /// Holds them against those of the other node.
    ///
    /// # Errors
    /// One of both could not read what the other one makes.
    pub fn go_with(&self, other: &KeyNames) -> Result<(), OtherKeys> {
        let not_known = |makes: &KeyNames, by: &KeyNames| -> Vec<u64> {
            let made = makes.makes.iter().filter(|name| **name != 0);
            made.filter(|name| !by.knows.contains(name))
                .copied()
                .collect()
        };
        // One that names none, as a test's, makes no checkpoints.
        let none = KeyNames::default();
        if *self == none || *other == none {
            return Ok(());
        }
        let (theirs, ours) = (not_known(other, self), not_known(self, other));
        match theirs.is_empty() && ours.is_empty() {
            true => Ok(()),
            false => Err(OtherKeys { theirs, ours }),
        }
    }

    pub(super) fn encode(&self) -> impl Iterator<Item = u8> {
        let all = self.makes.iter().chain(&self.knows);
        all.flat_map(|name| name.to_be_bytes())
    }

    pub(super) fn decode(bytes: &[u8; BYTES]) -> KeyNames {
        let (names, _) = bytes.as_chunks::<8>();
        let (makes, knows) = names.split_at(MAKES);
        KeyNames::new(makes, knows)
    }
}

impl fmt::Display for OtherKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |all: &[u64]| {
            let all: Vec<String> = all.iter().map(|name| format!("{name:016x}")).collect();
            all.join(" and ")
        };
        f.write_str("the two nodes have different keys of checkpoints: ")?;
        match (self.theirs.is_empty(), self.ours.is_empty()) {
            (false, true) => write!(
                f,
                "that one makes them with {}, which is not here",
                names(&self.theirs)
            )?,
            (true, _) => write!(
                f,
                "this one makes them with {}, which is not there",
                names(&self.ours)
            )?,
            (false, false) => write!(
                f,
                "that one makes them with {}, and this one with {}",
                names(&self.theirs),
                names(&self.ours)
            )?,
        }
        f.write_str(
            "; have the same file at --key of gpuos_mover (munge's key without it) and the same encrypt-keys on all nodes, or name the \
             other key in other-keys of [checkpoint], and restart gpuos_mover",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_makes_the_other_has_to_know() {
        let [old, new, cipher] = [[1; 8], [2; 8], [3; 8]];
        let of = |makes: &[[u8; 8]], knows: &[[u8; 8]]| KeyNames::new(makes, knows);
        let before = of(&[old], &[old]);
        let prepared = of(&[old], &[old, new]);
        let turned = of(&[new], &[new, old]);
        let after = of(&[new], &[new]);
        let go = |one: &KeyNames, other: &KeyNames| {
            assert_eq!(one.go_with(other).is_ok(), other.go_with(one).is_ok());
            one.go_with(other).is_ok()
        };
        // A rotation, node after node.
        for [one, other] in [[before, prepared], [prepared, turned], [turned, after]] {
            assert!(go(&one, &other) && go(&one, &one));
        }
        for [one, other] in [[before, turned], [prepared, after], [before, after]] {
            assert!(!go(&one, &other));
        }
        assert!(!go(&before, &of(&[old, cipher], &[old, cipher])));
        assert!(go(&KeyNames::default(), &before));
        let why = before.go_with(&turned).unwrap_err().to_string();
        assert!(
            why.contains("that one makes them with 0202020202020202, which is not here"),
            "{why}"
        );
        let bytes: Vec<u8> = turned.encode().collect();
        assert_eq!(KeyNames::decode(bytes.first_chunk().unwrap()), turned);
        assert_eq!(bytes.len(), BYTES);
    }
}
