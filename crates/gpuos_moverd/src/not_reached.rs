//! Why a node is not reached, and what another try may bring.

/// Why a node is not reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotReached {
    /// A clause that names the node.
    pub why: String,
    /// Whether another try may help.
    pub hope: Hope,
}

/// What another try may bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hope {
    /// Nobody takes a connection: a mover that is started anew is back in a moment, a dead node is not.
    Away,
    /// It takes connections, and does not answer in time.
    Slow,
    /// It has said no.
    None,
    /// It has other keys: an administrator has to do something.
    Keys,
}

impl NotReached {
    /// One that has said no.
    pub fn turned_away(why: String) -> NotReached {
        let hope = Hope::None;
        NotReached { why, hope }
    }
}
