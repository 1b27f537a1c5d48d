//! A checkpoint that a program could not load.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of the name of a node at most; as long as names of hosts can be.
pub const MAX_NODE: usize = 255;

/// Bytes of what a program says about it at most; own choice.
pub const MAX_SAID: usize = 200;

/// Who could not load a checkpoint. It stays with the checkpoint, which is passed over from then on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// The rank.
    pub rank: u16,
    /// The name of its node.
    pub node: String,
    /// What the program says, for its user alone. It is the user's text.
    pub said: String,
}

impl fmt::Display for Refusal {
    /// A clause, without what the program says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {} on {} could not load it and has refused it",
            self.rank, self.node
        )
    }
}

impl Refusal {
    /// Whether its texts are within their limits.
    pub fn fits(&self) -> bool {
        self.node.len() <= MAX_NODE && self.said.len() <= MAX_SAID
    }

    /// The same with texts that are cut to their limits.
    pub fn cut(mut self) -> Refusal {
        cut(&mut self.node, MAX_NODE);
        cut(&mut self.said, MAX_SAID);
        self
    }

    /// The bytes by which a store keeps it.
    pub fn encode(&self) -> Vec<u8> {
        // Writing plain data to memory does not fail; empty bytes are no refusal.
        postcard::to_extend(&self.clone().cut(), Vec::new()).unwrap_or_default()
    }

    /// Reads what a store has kept. `None`: it is none, or outside its limits.
    pub fn decode(bytes: &[u8]) -> Option<Refusal> {
        match postcard::take_from_bytes::<Refusal>(bytes) {
            Ok((refusal, [])) => Some(refusal).filter(Refusal::fits),
            _ => None,
        }
    }
}

fn cut(text: &mut String, most: usize) {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_from_its_bytes_cut_to_its_limits() {
        let refusal = Refusal {
            rank: 2,
            node: "n3".into(),
            said: "ü".repeat(300),
        };
        let bytes = refusal.encode();
        let read = Refusal::decode(&bytes).unwrap();
        assert_eq!((read.rank, &read.node[..]), (2, "n3"));
        assert_eq!(read.said, "ü".repeat(100));
        assert!(!refusal.fits() && read.fits());
        for cut in 0..bytes.len() {
            assert_eq!(Refusal::decode(&bytes[..cut]), None);
        }
        assert_eq!(Refusal::decode(&[&bytes[..], b"x"].concat()), None);
        assert_eq!(
            read.to_string(),
            "rank 2 on n3 could not load it and has refused it"
        );
    }
}
