//! How much redundancy a job wants, as a user writes it.

use std::fmt;
use std::str::FromStr;

use gpuos_model::hostlist::shorten;
use serde::{Deserialize, Serialize};

/// The largest set that a scheme may name. Arranged sets are below twice its size, and so within the 256 shards that
/// Reed-Solomon codes over GF(2^8) allow.
pub const MOST_NODES: u8 = 64;

/// The most parity shards of a stripe.
pub const MOST_PARITY: u8 = 16;

/// What the nodes of a set keep for each other. Its text form is what follows `l2=`: `single`, `partner`, `xor:8`, `rs:6+2`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Scheme {
    /// Nothing: a lost node loses its part.
    Single,
    /// Two nodes hold copies of each other's segment.
    Partner,
    /// One parity shard for each stripe of a set: one node of it can be lost.
    Xor {
        /// The size of a set, 2 to [`MOST_NODES`].
        nodes: u8,
    },
    /// `parity` nodes of a set of `data + parity` can be lost.
    ReedSolomon {
        /// Data shards of a stripe, 1 or more.
        data: u8,
        /// Parity shards of a stripe, 1 to [`MOST_PARITY`].
        parity: u8,
    },
}

impl Scheme {
    /// The smallest set: data and parity shards of a stripe.
    pub fn nodes(self) -> usize {
        match self {
            Scheme::Single => 1,
            Scheme::Partner => 2,
            Scheme::Xor { nodes } => usize::from(nodes),
            Scheme::ReedSolomon { data, parity } => usize::from(data) + usize::from(parity),
        }
    }

    /// How many nodes of a set can be lost.
    pub fn parity(self) -> u8 {
        match self {
            Scheme::Single => 0,
            Scheme::Partner | Scheme::Xor { .. } => 1,
            Scheme::ReedSolomon { parity, .. } => parity,
        }
    }

    /// The same scheme, if its numbers are within the limits. What [`str::parse`] gives is; what was received may not be.
    pub fn check(self) -> Result<Scheme, SchemeError> {
        let refused = |why| {
            let given = self.to_string();
            Err(SchemeError { given, why })
        };
        match self {
            Scheme::Xor { nodes: 0 | 1 } => refused(Why::TooSmall),
            Scheme::ReedSolomon { data: 0, .. } => refused(Why::NoData),
            Scheme::ReedSolomon { parity, .. } if !(1..=MOST_PARITY).contains(&parity) => {
                refused(Why::Parity)
            }
            _ if self.nodes() > usize::from(MOST_NODES) => refused(Why::TooLarge),
            _ => Ok(self),
        }
    }

    /// Schemes near this one whose sets have `most` nodes, which is less than now: with as much parity, with as much data,
    /// else with one parity shard. Empty when not even two nodes are left for a set.
    pub(super) fn smaller(self, most: usize) -> Vec<Scheme> {
        let most = u8::try_from(most).unwrap_or(u8::MAX).min(MOST_NODES);
        let mut fitting = Vec::new();
        if let Scheme::ReedSolomon { data, parity } = self {
            if let Some(data) = most.checked_sub(parity).filter(|data| *data > 0) {
                fitting.push(Scheme::ReedSolomon { data, parity });
            }
            if let Some(parity) = most.checked_sub(data).filter(|parity| *parity > 0) {
                fitting.push(Scheme::ReedSolomon { data, parity });
            }
        }
        match (fitting.is_empty(), most) {
            (false, _) | (true, 0 | 1) => {}
            (true, 2) => fitting.push(Scheme::Partner),
            (true, nodes) => fitting.push(Scheme::Xor { nodes }),
        }
        fitting
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::Single => f.write_str("single"),
            Scheme::Partner => f.write_str("partner"),
            Scheme::Xor { nodes } => write!(f, "xor:{nodes}"),
            Scheme::ReedSolomon { data, parity } => write!(f, "rs:{data}+{parity}"),
        }
    }
}

impl FromStr for Scheme {
    type Err = SchemeError;

    fn from_str(text: &str) -> Result<Scheme, SchemeError> {
        let refused = |why| SchemeError {
            given: shorten(text).to_string(),
            why,
        };
        let number = |digits: &str| match digits.bytes().all(|b| b.is_ascii_digit()) {
            true if digits.is_empty() => Err(refused(Why::NoNumber)),
            // All digits: it can only be too large.
            true => digits.parse().map_err(|_| refused(Why::TooLarge)),
            false => Err(refused(Why::NoNumber)),
        };
        let scheme = match text.split_once(':') {
            None if text == "single" => Scheme::Single,
            None if text == "partner" => Scheme::Partner,
            Some(("xor", nodes)) => Scheme::Xor {
                nodes: number(nodes)?,
            },
            Some(("rs", shards)) => {
                let (data, parity) = shards.split_once('+').ok_or(refused(Why::NoPlus))?;
                Scheme::ReedSolomon {
                    data: number(data)?,
                    parity: number(parity)?,
                }
            }
            _ => return Err(refused(Why::Unknown)),
        };
        scheme.check()
    }
}

/// Why a text or a received value is no scheme. The sentence says what was given, what is wrong, and what can be given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchemeError {
    given: String,
    why: Why,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    Unknown,
    NoNumber,
    NoPlus,
    TooSmall,
    NoData,
    Parity,
    TooLarge,
}

impl SchemeError {
    /// What was given, and what is wrong with it.
    pub fn reason(&self) -> String {
        let why = match self.why {
            Why::Unknown => "it is not one of the known schemes",
            Why::NoNumber => "a number is missing or has other characters than digits",
            Why::NoPlus => "the '+' between data and parity shards is missing",
            Why::TooSmall => "a set needs at least 2 nodes",
            Why::NoData => "a stripe needs at least 1 data shard",
            Why::Parity => "a stripe has 1 to 16 parity shards",
            Why::TooLarge => "a set has at most 64 nodes",
        };
        format!("l2={} is not understood: {why}", self.given)
    }

    /// What is accepted.
    pub fn accepted() -> String {
        format!(
            "l2=single, l2=partner, l2=xor:NODES (2 to {MOST_NODES}) or l2=rs:DATA+PARITY (DATA from 1, PARITY 1 to {MOST_PARITY}, \
             together at most {MOST_NODES})"
        )
    }
}

impl fmt::Display for SchemeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; give {}", self.reason(), SchemeError::accepted())
    }
}

impl std::error::Error for SchemeError {}
