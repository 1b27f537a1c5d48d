//! What nodes say to each other: one JSON object a datagram, inside a credential of munge.
use gpuos_model::hostlist::is_name;
use serde::{Deserialize, Serialize};

use crate::job::JobId;

/// The longest message, in bytes. Three names of nodes of the greatest length fit.
pub const MAX_DATAGRAM: usize = 1024;

/// Raised when a message changes its meaning. Other versions are not listened to.
const VERSION: u8 = 1;

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Datagram {
    v: u8,
    /// The node that says it.
    pub from: String,
    /// The node that it is for: a credential read on one node cannot be sent to another.
    pub to: String,
    /// What.
    pub body: Body,
}

/// What is said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Body {
    /// Are you there?
    Ping,
    /// Yes.
    Pong,
    /// What do you find of this node of our job?
    Poll {
        /// The job.
        job: JobId,
        /// The list of its nodes, as a number.
        nodes: u64,
        /// The node that is not heard.
        about: String,
        /// Names the question.
        nonce: u64,
        /// Whether it has been silent for so long that a slurmd which takes connections and says nothing counts as gone.
        hung: bool,
    },
    /// The answer.
    Vote {
        /// The node that it is about.
        about: String,
        /// The question.
        nonce: u64,
        /// What was found.
        word: Word,
    },
    /// This gpuosd ends in order: its silence means nothing.
    Bye,
}

/// What a node finds of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// Neither its gpuosd nor its slurmd answers.
    Gone,
    /// One of them does.
    Heard,
    /// It cannot or may not say.
    Abstain,
}

impl Datagram {
    /// A message of this version.
    pub fn new(from: &str, to: &str, body: Body) -> Datagram {
        Datagram {
            v: VERSION,
            from: from.into(),
            to: to.into(),
            body,
        }
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        // Names, numbers and words can always be written.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// From bytes. `None`: too long, no message, of another version, or with names that no node has.
    pub fn decode(bytes: &[u8]) -> Option<Datagram> {
        if bytes.len() > MAX_DATAGRAM {
            return None;
        }
        let told: Datagram = serde_json::from_slice(bytes).ok()?;
        let about = match &told.body {
            Body::Poll { about, .. } | Body::Vote { about, .. } => is_name(about),
            Body::Ping | Body::Pong | Body::Bye => true,
        };
        let known = told.v == VERSION && is_name(&told.from) && is_name(&told.to);
        (known && about).then_some(told)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn poll(name: &str) -> Datagram {
        let body = Body::Poll {
            job: u32::MAX.into(),
            nodes: u64::MAX,
            about: name.into(),
            nonce: u64::MAX,
            hung: false,
        };
        Datagram::new(name, name, body)
    }

    #[test]
    fn the_longest_message_fits() {
        let longest = poll(&"n".repeat(gpuos_model::hostlist::MAX_NAME));
        assert!(longest.encode().len() <= MAX_DATAGRAM);
        assert_eq!(Datagram::decode(&longest.encode()), Some(longest));
    }

    #[test]
    fn what_is_no_message_is_not_listened_to() {
        let good = String::from_utf8(poll("n1").encode()).unwrap();
        for (part, other) in [
            ("\"v\":1", "\"v\":2"),
            ("\"from\":\"n1\"", "\"from\":\"n 1\""),
            ("\"about\":\"n1\"", "\"about\":\"\""),
            ("\"hung\":false", "\"hung\":false,\"more\":1"),
            ("\"poll\"", "\"other\""),
        ] {
            assert!(good.contains(part));
            assert_eq!(
                Datagram::decode(good.replace(part, other).as_bytes()),
                None,
                "{other}"
            );
        }
        let padded = format!("{good}{}", " ".repeat(MAX_DATAGRAM));
        assert_eq!(Datagram::decode(padded.as_bytes()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_and_any_change_are_read_or_refused(
            bytes: Vec<u8>, at in 0_usize..150, byte: u8,
        ) {
            let _ = Datagram::decode(&bytes);
            let mut changed = poll("n1").encode();
            let at = at % changed.len();
            changed[at] = byte;
            if let Some(told) = Datagram::decode(&changed) {
                prop_assert!(is_name(&told.from) && is_name(&told.to));
                prop_assert_eq!(Datagram::decode(&told.encode()), Some(told));
            }
        }
    }
}
